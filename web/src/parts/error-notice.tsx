import { Alert } from "@mantine/core";
import { ApiError, Unreachable } from "../api/client";

/** What went wrong, in words that say what to do. */
export function ErrorNotice({ error }: { error: Error }) {
  const { title, text } = words(error);
  return (
    <Alert role="alert" color="red" variant="light" title={title} className="wrap">
      {text}
    </Alert>
  );
}

/** Beside what is still shown. That nobody answers is in the banner, once. */
export function Notice({ error }: { error: Error | null }) {
  return error === null || error instanceof Unreachable ? null : <ErrorNotice error={error} />;
}

export function words(error: Error): { title: string; text: string } {
  if (error instanceof Unreachable) {
    return { title: "No connection", text: "The server does not answer. Trying again." };
  }
  if (!(error instanceof ApiError)) return { title: "Something went wrong", text: error.message };
  const said = error.message;
  switch (error.status) {
    case 401:
      return { title: "A key is needed", text: said };
    case 403:
      return { title: "Your key may not", text: said };
    case 404:
      return { title: "Not there", text: said };
    case 409:
      return { title: "Not now", text: said };
    case 503:
      return { title: "The store does not answer", text: said };
    default:
      return { title: error.problem.title ?? "Something went wrong", text: said };
  }
}
