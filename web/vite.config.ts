/** How the page is built: into the Python package, from where `holdfast serve` gives it out. */
import { gzipSync } from "node:zlib";
import react from "@vitejs/plugin-react";
import { defineConfig, type Plugin } from "vitest/config";

const SERVER = process.env.HOLDFAST_SERVER ?? "http://127.0.0.1:8080";
const BUDGET_KB = 300;

/** A page that grew too heavy for a telephone at night is a build that fails. */
function budget(): Plugin {
  return {
    name: "budget",
    generateBundle(_, bundle) {
      let bytes = 0;
      for (const file of Object.values(bundle)) {
        bytes += gzipSync(file.type === "chunk" ? file.code : file.source).length;
      }
      const kb = bytes / 1000;
      this.info(`${kb.toFixed(1)} kB gzipped in all, of ${BUDGET_KB}`);
      if (kb > BUDGET_KB) this.error(`over the budget of ${BUDGET_KB} kB`);
    },
  };
}

export default defineConfig({
  plugins: [react(), budget()],
  base: "/",
  build: {
    outDir: "../src/holdfast/server/static",
    emptyOutDir: true,
    target: "es2022",
    // light-dark() is left as it is.
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    // An inlined file would need data: in the CSP.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: {
    // The server refuses what a page of another origin sends, so the proxy speaks as its own.
    proxy: Object.fromEntries(
      ["/v1", "/events", "/health", "/docs"].map((path) => [
        path,
        { target: SERVER, changeOrigin: true, headers: { origin: SERVER } },
      ]),
    ),
  },
  test: { environment: "node", include: ["src/**/*.test.{ts,tsx}"] },
});
