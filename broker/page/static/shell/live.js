/**
 * One stream of events for everything on the page, from which it learns what changes, and that the broker is lost.
 *
 * @typedef {"connecting" | "live" | "lost" | "paused"} State
 */
import { Rows } from "./rows.js";
import { session } from "./api.js";

/** All pages follow these, so that each is filled at once when one goes from page to page. */
const TOPICS = "overview,queues";

const RETRY_MS = 1000;

/** Fires `state`, `overview` and `queues`. */
class Live extends EventTarget {
  constructor() {
    super();
    /** @type {EventSource | null} */
    this.source = null;
    /** @type {State} */
    this.state = "connecting";
    this.vhost = "";
    this.isWanted = false;
    this.isPaused = false;
    /** @type {any} The last event of the overview. */
    this.overview = null;
    this.queues = new Rows();
    this.retry = 0;
    document.addEventListener("visibilitychange", () => this.open());
  }

  /**
   * Follow what changes, in one virtual host or all ("").
   * @param {string} vhost
   */
  follow(vhost) {
    if (this.isWanted && vhost === this.vhost) return;
    if (vhost !== this.vhost) {
      this.queues = new Rows();
      this.overview = null;
    }
    this.isWanted = true;
    this.vhost = vhost;
    this.open();
  }

  stop() {
    this.isWanted = false;
    this.close();
    this.queues = new Rows();
    this.overview = null;
  }

  /**
   * Have everything on the page stay as it is, or go on.
   * @param {boolean} isPaused
   */
  pause(isPaused) {
    this.isPaused = isPaused;
    this.open();
  }

  /** Whether nothing is to be read now: nobody looks, or somebody looks at what there is. */
  get isStill() {
    return document.hidden || this.isPaused;
  }

  close() {
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
  }

  /** Connect anew, unless nobody looks: a page in the background costs the broker nothing. */
  open() {
    if (!this.isWanted) return;
    if (this.isStill) {
      this.close();
      this.become("paused");
      return;
    }
    if (this.source && this.source.readyState !== EventSource.CLOSED && this.source.url.endsWith(this.query())) return;
    this.close();
    const source = new EventSource(`api/leveret/events?${this.query()}`);
    this.source = source;
    source.addEventListener("open", () => this.become("live"));
    source.addEventListener("error", () => this.failed(source));
    source.addEventListener("overview", (event) => {
      this.overview = JSON.parse(event.data);
      this.dispatchEvent(new Event("overview"));
    });
    source.addEventListener("queues", (event) => {
      if (this.queues.take(JSON.parse(event.data))) this.dispatchEvent(new Event("queues"));
    });
    source.addEventListener("end", () => session.dispatchEvent(new Event("check")));
  }

  query() {
    const query = new URLSearchParams({ topics: TOPICS });
    if (this.vhost) query.set("vhost", this.vhost);
    return query.toString();
  }

  /** @param {EventSource} source */
  failed(source) {
    if (source !== this.source) return;
    if (source.readyState === EventSource.CLOSED) session.dispatchEvent(new Event("check"));
    this.close(); // the browser itself would wait longer each time
    this.retry = setTimeout(() => this.open(), RETRY_MS);
    this.become("lost");
  }

  /** @param {State} state */
  become(state) {
    if (state === this.state) return;
    const before = this.state;
    this.state = state;
    this.dispatchEvent(new Event("state"));
    if (state === "live" && before === "lost") this.dispatchEvent(new Event("back"));
  }
}

export const live = new Live();
