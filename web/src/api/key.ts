/** The key that the operator typed: for this tab, or for this browser when asked to remember it. */
const NAME = "holdfast-key";

export function readKey(): string | null {
  return sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME);
}

export function keepKey(key: string, remember: boolean): void {
  forgetKey();
  (remember ? localStorage : sessionStorage).setItem(NAME, key);
}

export function forgetKey(): void {
  sessionStorage.removeItem(NAME);
  localStorage.removeItem(NAME);
}
