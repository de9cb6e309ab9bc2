// Scores of the site's search: Sphinx's own, multiplied by the kind of page, so that guides come first and design decisions last.
var Scorer = {
  score: ([docname, title, anchor, description, score]) => {
    if (docname.startsWith("howto/") || docname === "tutorial" || docname === "upgrade") return score * 10;
    if (docname.startsWith("adr/")) return score / 10;
    if (docname === "compatibility" || docname === "glossary") return score / 2;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
