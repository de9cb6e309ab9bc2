/** Reading something again and again while it is shown, and saying when that fails. */
import { h, reasonOf } from "./elements.js";
import { live } from "./live.js";

/**
 * Read now, and every few seconds while the page is in sight and not paused; returns a function that reads at once.
 * @template T
 * @param {{read: (signal: AbortSignal) => Promise<T>, show: (value: T) => void, place: HTMLElement, signal: AbortSignal,
 *   seconds?: number}} settings `place`: where an error is shown
 * @returns {() => Promise<void>}
 */
export function poll({ read, show, place, signal, seconds = 5 }) {
  const problem = h("p", { class: "error", role: "alert", hidden: true });
  place.prepend(problem);
  let timer = 0;
  const once = async (isWanted = true) => {
    clearTimeout(timer);
    try {
      if (isWanted) show(await read(signal));
      problem.hidden = true;
    } catch (error) {
      if (signal.aborted) return;
      problem.textContent = reasonOf(error);
      problem.hidden = false;
    }
    clearTimeout(timer);
    if (!signal.aborted) timer = setTimeout(() => once(!live.isStill), seconds * 1000);
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  once();
  return once;
}
