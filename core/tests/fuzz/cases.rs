//! Inputs that broke other stores, from which random ones are made.

/// JSON that stores have changed or refused: NUL, lone surrogates, key order, duplicate keys, number forms, white space.
pub const JSON: &[&str] = &[
    r#"{"a":"x\u0000y"}"#,
    r#"{"x\u0000y":1}"#,
    r#""\u0000""#,
    r#""\ud83d""#,
    r#""\ude00""#,
    r#"{"\ud83d":"\ude00","\ude00\ud83d":0}"#,
    r#"{"b":1,"a":2,"b":3}"#,
    r#"{"\u0061":1,"a":2}"#,
    "1e2",
    "-0.0",
    "1e400000",
    "123456789012345678901234567890",
    "[0.10,1E-5,-0,1.0e+2,3.0]",
    " {\t\"a\" :\r\n [ 1 ,2 ] }\n ",
    r#""\/\b\f\n\r\t\"\\""#,
    "\"\u{7f}\u{85}\u{2028}\u{feff}\u{10ffff}\u{fffd}\u{1F525}e\u{301}\"",
    "null",
    "true",
    "false",
    "\"\"",
    "{}",
    "[]",
    r#"{"":{"":[]}}"#,
    r#"{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","function":{"arguments":"{\"q\":1}"}}]}"#,
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
];

/// Ids and labels: spaces, quotes, slashes, emoji, line breaks, nothing.
pub const NAMES: &[&str] = &[
    "",
    "a",
    " ",
    "it's",
    "\"quoted\"",
    "a/b\\c",
    "\u{1F680}",
    "e\u{301}",
    "a\nb",
    "a\tb",
    "\u{0}",
    "\u{7f}",
    "\u{85}",
    "\u{2028}",
    "incident-4127",
    "00000000-0000-0000-0000-000000000000",
];

/// Batches, and what is none.
pub const BATCHES: &[&str] = &[
    r#"[{"payload":1},{"payload":{"b":1,"a":2,"b":3},"kind":"tool","item_id":"i","tag":"t","author":"a"}]"#,
    r#"[{"payload":"\u0000","attrs":{"a":"\u0000"},"kept_from":3,"on_conflict":"keep"}]"#,
    r#"[{"payload":null,"kind":null,"attrs":null},null,1,[],{}]"#,
    r#"[{"payload":1,"payload":2}]"#,
    r#"[{"payload":1,"payloads":2}]"#,
    "[]",
    "{}",
    "null",
    "[[]]",
    r#"[[1,"message","i","t","a",null,0,"keep"]]"#,
];

/// Batches of events, and lines of an exported trail.
pub const EVENTS: &[&str] = &[
    r#"[{"action":"a","payload":{"x":"\u0000"},"actor":"ann","target":"t","session_id":"s","status":"ok","attrs":{"n":1.50},"occurred_at":"2000-01-01T00:00:00Z","event_id":"e"}]"#,
    r#"[{"action":"a"},{"payload":1},{"action":null}]"#,
    r#"[{"data":"{\"seq\":1}","hash":"sha256:00","prev_hash":"sha256:11","seq":1,"stream":"s"}]"#,
    r#"[{"data":"","hash":""}]"#,
];

/// Which keys of an event's text go into which column.
pub const FIELDS: &[&str] = &[
    "{}",
    r#"{"action":"type","actor":["user","id"],"occurred_at":"at","attrs":"facts"}"#,
    r#"{"seq":"n"}"#,
    r#"{"action":[]}"#,
    r#"{"action":{"a":1}}"#,
];

pub const TIMES: &[&str] = &[
    "2000-01-01T00:00:00Z",
    "2026-11-29T11:15:05.000042Z",
    "0000-01-01T00:00:00.000000Z",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-23:59",
    "2016-12-31T23:59:60Z",
    "2000-02-29T24:00:00+00:00",
    "2000-01-01 00:00:00",
    "infinity",
    "now",
];

pub const LEASES: &[&str] =
    &["7:a5", "7:a,8:b", " 7:a, 8:b,", "x,7:a,:,8:b", "-1:a", "9223372036854775808:a", "7", ":", ""];

pub const CURSORS: &[&str] = &[
    "c0000000000000000ffffffffffffffff",
    "a8000000000000000000000000000000A",
    "c+0000000000000000000000000000000",
    "c",
    "",
];

pub const TITLES: &[&str] =
    &["fork %d", "%d", "%d%d", "100 %", "a %d of %d", "fork 18446744073709551615", "fork 007", "fork +5", ""];

pub const VERSIONS: &[&str] = &["0.1.0", "1.2.3.4", "1..3", "+1.2.3", "4294967296.0.0", "1.2.x", ""];

/// What entries about others say of them.
pub const EXPLANATIONS: &[&str] = &[
    r#"{"reason":"why","revisions":[1,2]}"#,
    r#"{"revisions":[9223372036854775808,-1,1.5,"1"]}"#,
    r#"{"base_digest":"00"}"#,
    r#"{"base_digest":7}"#,
];

pub const LEAVES: &[&str] = &[
    r#"["stream","t","s",7,"sha256:00"]"#,
    r#"["session","t","a","s",3,"00"]"#,
    r#"["stream","t","s",7]"#,
    r#"["other","","",7,""]"#,
];

/// Lines of an export.
pub const LINES: &[&str] = &[
    r#"{"session":{"format":"agent_sessions/session/1","tenant":"","agent_id":"","session_id":"s","created_at":7,"revision":0}}"#,
    r#"{"session":{"session_id":"s","created_at":"2000-01-01T00:00:00Z","state":"{\"a\":1}"}}"#,
    r#"{"ancestor":{"agent_id":"","session_id":"o","created_at":-1,"fork_position":null}}"#,
    r#"{"entry":{"position":0,"op":"append","kind":"message","payload":"{\"a\":\"\\u0000\"}","created_at":1}}"#,
    r#"{"entry":{"payload":"1","author":"user"}}"#,
    r#"{"explanation":{"position":9,"op":"erase","target":1,"payload":"{\"revisions\":[]}"}}"#,
    r#"{"chunk":{"target":3,"chunk_no":0,"chunk":"text"}}"#,
    r#"{"end":["0000000000000000000000000000000000000000000000000000000000000000"]}"#,
    r#"{"end":{"sha256":"0000000000000000000000000000000000000000000000000000000000000000"}}"#,
];
