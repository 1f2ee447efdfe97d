//! `overlane accel explain`: every code, in text and JSON.

use serde_json::Value;

use super::launch::run;
use super::schema::validate;

fn all() -> Vec<Value> {
    let listed: Value =
        serde_json::from_str(&run(["accel", "explain", "--json"]).expect(0).stdout).unwrap();
    validate("accel-explain", &listed);
    listed.as_array().unwrap().clone()
}

#[test]
fn accel_explains_every_code_that_it_lists() {
    let all = all();
    let list = run(["accel", "explain"]).expect(0).stdout;
    assert_eq!(list.lines().count(), all.len());
    for known in &all {
        let field = |name: &str| known[name].as_str().unwrap();
        let (code, title) = (field("code"), field("title"));
        assert!(list.contains(&format!("{code}  {title}\n")), "{list}");
    }
    let known = &all[all.len() / 2];
    let code = known["code"].as_str().unwrap();
    let text = run(["accel", "explain", &code.to_lowercase()]).expect(0).stdout;
    for field in ["code", "title", "explanation", "remedy"] {
        assert!(text.contains(known[field].as_str().unwrap()), "{field}: {text}");
    }
    let one = run(["accel", "explain", code, "--json"]).expect(0).stdout;
    assert_eq!(serde_json::from_str::<Vec<Value>>(&one).unwrap(), std::slice::from_ref(known));
}

#[test]
fn accel_explains_no_code_that_is_none() {
    let ended = run(["accel", "explain", "AX999"]).expect(2);
    assert!(ended.stderr.contains("CODE") && ended.stderr.contains("AX999"), "{}", ended.stderr);
}
