/** Lines over time. uPlot draws them; this only gives it the colours of the page and its width. */
import "uplot/dist/uPlot.min.css";
import { useComputedColorScheme } from "@mantine/core";
import { useEffect, useRef } from "react";
import uPlot from "uplot";
import { clockTime } from "../format";

export interface Line {
  title: string;
  color: "blue" | "green" | "red" | "amber" | "quiet";
  isFilled?: boolean;
  values: (number | null)[];
}

interface Props {
  label: string;
  /** Milliseconds. */
  times: number[];
  lines: Line[];
  show: (value: number) => string;
}

const HEIGHT = 104;
const SHORT_S = 600;

export function Chart({ label, times, lines, show }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot>(null);
  const scheme = useComputedColorScheme("light");
  const shape = lines.map((line) => line.title).join();
  const latest = useRef({ times, lines, show });
  useEffect(() => {
    latest.current = { times, lines, show };
    if (chart.current) fill(chart.current, times, lines);
  });
  useEffect(() => {
    const element = box.current;
    if (element === null) return undefined;
    const given = latest.current;
    const made = new uPlot(
      optionsOf(given.lines, given.show, element.clientWidth),
      dataOf(given.times, given.lines),
      element,
    );
    chart.current = made;
    fill(made, given.times, given.lines);
    const watch = new ResizeObserver(() => {
      if (element.clientWidth > 0) made.setSize({ width: element.clientWidth, height: HEIGHT });
    });
    watch.observe(element);
    return () => {
      watch.disconnect();
      made.destroy();
      chart.current = null;
    };
    // Colours are read when it is drawn, so other colours want another chart.
  }, [scheme, shape]);
  return <div ref={box} role="img" aria-label={label} style={{ minHeight: HEIGHT + 24 }} />;
}

/** While nobody points at it, the legend tells the newest. */
function fill(chart: uPlot, times: number[], lines: Line[]): void {
  chart.setData(dataOf(times, lines));
  if (chart.cursor.idx == null && times.length > 0) chart.setLegend({ idx: times.length - 1 });
}

function dataOf(times: number[], lines: Line[]): uPlot.AlignedData {
  return [times.map((at) => at / 1000), ...lines.map((line) => line.values)];
}

function optionsOf(lines: Line[], show: (value: number) => string, width: number): uPlot.Options {
  const quiet = colour("quiet");
  const grid = { stroke: colour("line"), width: 1 };
  const axis = { stroke: quiet, grid, ticks: { show: false }, font: "11px Inter, sans-serif" };
  return {
    width,
    height: HEIGHT,
    cursor: { drag: { x: false, y: false }, points: { size: 5 } },
    legend: { live: true },
    scales: { y: { range: (_, __, max) => [0, Math.max(1, max * 1.1)] } },
    axes: [
      { ...axis, size: 24, space: 70, values: hours },
      { ...axis, size: 52, space: 30, values: (_, ticks) => ticks.map(show) },
    ],
    series: [
      { label: "Time", value: "{HH}:{mm}:{ss}" },
      ...lines.map((line) => ({
        label: line.title,
        stroke: colour(line.color),
        fill: line.isFilled ? colour(`${line.color}-soft`) : undefined,
        width: 1.5,
        points: { show: false },
        value: (_: uPlot, value: number | null) => (value === null ? "—" : show(value)),
      })),
    ],
  };
}

function hours(_: uPlot, ticks: number[]): string[] {
  const isShort = (ticks.at(-1) ?? 0) - (ticks[0] ?? 0) < SHORT_S;
  return ticks.map((tick) => clockTime(tick * 1000).slice(0, isShort ? 8 : 5));
}

/** A canvas does not know var() and light-dark(): the browser has to work them out first. */
function colour(name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(--hf-${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
