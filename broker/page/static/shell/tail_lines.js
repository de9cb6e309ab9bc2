/** Messages of a tail as they come in lines: all are counted, and the newest are kept until they are shown. Pure. */

export class TailLines {
  /** @param {number} most how many are kept */
  constructor(most) {
    this.most = most;
    /** Messages that have come. */
    this.seen = 0;
    /** Messages that the broker left out because this page read too slowly. */
    this.lost = 0;
    /** Messages that have come and were never shown, because newer ones took their place. */
    this.passed = 0;
    /** Why there are no more; "" while there may be. */
    this.end = "";
    this.rest = "";
    /** @type {string[]} */
    this.waiting = [];
  }

  /** How many wait to be shown. */
  get count() {
    return this.waiting.length;
  }

  /**
   * Take a piece of the answer, which may end in the middle of a line. What is never shown is never parsed.
   * @param {string} piece
   */
  take(piece) {
    const lines = (this.rest + piece).split("\n");
    this.rest = lines.pop() ?? "";
    for (const line of lines) {
      if (!line) continue;
      if (line.startsWith('{"lost":')) this.lost += JSON.parse(line).lost;
      else if (line.startsWith('{"end":')) this.end = JSON.parse(line).end;
      else {
        this.seen += 1;
        this.waiting.push(line);
      }
    }
    const over = this.waiting.length - this.most;
    if (over > 0) {
      this.waiting.splice(0, over);
      this.passed += over;
    }
  }

  /**
   * Return what waits to be shown, the oldest first.
   * @returns {any[]}
   */
  shown() {
    const found = this.waiting.map((line) => JSON.parse(line));
    this.waiting = [];
    return found;
  }
}
