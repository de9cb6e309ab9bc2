// Runs the search of the built site without a browser: node search.js SITE QUERY... prints the pages found for each query, best first, as JSON.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, ...queries] = process.argv.slice(2);
const element = () => null;
const page = {document: {readyState: "loading", addEventListener() {}, getElementById: element}, console, URLSearchParams};
page.window = page;
vm.createContext(page);
page.SPHINX_HIGHLIGHT_ENABLED = false;
page._ready = () => {};
const files = ["_static/base-stemmer.js", "_static/english-stemmer.js", "_static/language_data.js", "_static/searchtools.js", "searchindex.js"];
const source = files.map((file) => fs.readFileSync(path.join(site, file), "utf8")).join("\n");
const search = `;(query) => Search._performSearch(...Search._parseQuery(query)).map((found) => found[0]).reverse()`;
const perform = vm.runInContext(`${source.replace(/^"use strict";$/gm, "")}\n${search}`, page);
console.log(JSON.stringify(queries.map(perform)));
