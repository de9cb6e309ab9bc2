/** Operator policies, which are as policies. */
export { showOperator as show } from "./policies.js";

export const title = "Operator policies";
