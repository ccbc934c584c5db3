/** Colour means something here, or is not there: one green for what can be pressed, red for trouble. */
import { createTheme, type MantineColorsTuple } from "@mantine/core";

const hold: MantineColorsTuple = [
  "#eefaf6",
  "#d8f1e8",
  "#b0e3d1",
  "#84d4b8",
  "#5cc5a1",
  "#3fb591",
  "#2a9a79",
  "#1f7d63",
  "#1b6a55",
  "#145043",
];

const dark: MantineColorsTuple = [
  "#e4e7eb",
  "#a2abb6",
  "#8b949f",
  "#5d6772",
  "#3a424b",
  "#2d333a",
  "#22272d",
  "#1b1f23",
  "#16191d",
  "#101315",
];

export const theme = createTheme({
  colors: { hold, dark },
  primaryColor: "hold",
  primaryShade: { light: 7, dark: 7 },
  defaultRadius: "sm",
  fontFamily: "Inter, ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
  fontFamilyMonospace: "ui-monospace, 'SF Mono', 'Cascadia Code', 'DejaVu Sans Mono', monospace",
  fontSizes: { xs: "0.75rem", sm: "0.8125rem", md: "0.875rem", lg: "1rem", xl: "1.125rem" },
  respectReducedMotion: true,
  cursorType: "pointer",
});
