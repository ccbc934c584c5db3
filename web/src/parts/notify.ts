/** A word in the corner, for what was done and what could not be done. */
import { notifications } from "@mantine/notifications";
import { words } from "./error-notice";

export function said(message: string): void {
  notifications.show({ message, color: "hold", withBorder: true });
}

export function failed(error: Error): void {
  const { title, text } = words(error);
  notifications.show({
    title,
    message: text,
    color: "red",
    withBorder: true,
    autoClose: 12_000,
    role: "alert",
  });
}
