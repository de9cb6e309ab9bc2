/** Logging in by an identity provider: the pure parts. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { addressOf, answerIn, asText } from "./static/shell/provider.js";

const BEGUN = { state: "s1", verifier: "v", hash: "#/queues", at: 1000 };

test("the address has the hash of the secret, and keeps what the provider has in it", () => {
  const provider = { authorization_endpoint: "https://idp.test/authorize?realm=a", client_id: "page", scopes: "openid x:*/*" };
  const url = new URL(addressOf(provider, { state: "s1", challenge: "c", back: "http://h/" }));
  assert.deepEqual(Object.fromEntries(url.searchParams), {
    realm: "a", response_type: "code", client_id: "page", redirect_uri: "http://h/", scope: "openid x:*/*", state: "s1",
    code_challenge: "c", code_challenge_method: "S256",
  });
});

test("octets are text without signs that addresses escape", () => {
  assert.equal(asText(new Uint8Array([251, 255, 254])), "-__-");
  assert.match(asText(crypto.getRandomValues(new Uint8Array(32))), /^[A-Za-z0-9_-]{43}$/);
});

test("an answer is taken only by the window that has begun, and in time", () => {
  assert.equal(answerIn("", BEGUN, 2000), null);
  assert.equal(answerIn("?tab=messages", BEGUN, 2000), null);
  assert.equal(answerIn("?code=c", BEGUN, 2000), null);
  assert.deepEqual(answerIn("?code=c&state=s1", BEGUN, 2000), { code: "c", verifier: "v", error: "" });
  for (const [search, begun, now] of [["?code=c&state=other", BEGUN, 2000], ["?code=c&state=s1", null, 2000], ["?code=c&state=s1", BEGUN, 1e9], ["?error=no&state=s1", BEGUN, 2000]]) {
    const answer = answerIn(search, begun, now);
    assert.ok(answer.error);
    assert.deepEqual([answer.code, answer.verifier], ["", ""]);
  }
});
