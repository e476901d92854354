//! META.json is what PGXN wants of one.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{project, text};

/// The terms that the PGXN meta specification 1.0.0 requires, and those that it knows besides.
#[test]
fn meta_json_is_valid_for_pgxn() {
    const REQUIRED: [&str; 7] = ["name", "version", "abstract", "maintainer", "license", "provides", "meta-spec"];
    const OPTIONAL: [&str; 8] =
        ["description", "generated_by", "no_index", "prereqs", "release_status", "resources", "tags", "date"];
    let meta: Value = serde_json::from_str(&text("META.json")).expect("META.json");
    let keys: BTreeSet<&str> = meta.as_object().expect("an object").keys().map(String::as_str).collect();
    for key in REQUIRED {
        assert!(keys.contains(key), "{key} is required");
    }
    for key in keys {
        assert!(REQUIRED.contains(&key) || OPTIONAL.contains(&key) || key.starts_with("X_"), "{key} is not known");
    }
    let is_term = |name: &str| {
        name.len() >= 2 && !name.contains(|c: char| c.is_control() || c.is_whitespace() || "/\\".contains(c))
    };
    assert!(is_term(meta["name"].as_str().expect("a name")));
    for key in ["abstract", "maintainer"] {
        assert!(meta[key].as_str().is_some_and(|text| !text.is_empty()), "{key}");
    }
    assert_eq!(meta["license"], "postgresql");
    assert_eq!(meta["meta-spec"]["version"], "1.0.0");
    assert!(["stable", "testing", "unstable"].contains(&meta["release_status"].as_str().expect("a status")));
    for (name, provided) in meta["provides"].as_object().expect("provides") {
        assert!(is_term(name));
        assert!(project().join(format!("{name}.control")).exists(), "{name} is no extension of this project");
        for key in ["file", "docfile"] {
            let path = provided[key].as_str().unwrap_or_else(|| panic!("{name} has no {key}"));
            assert!(project().join(path).exists(), "there is no {path}");
        }
        assert_eq!(semver(provided["version"].as_str().expect("a version")).len(), 3);
    }
    let least = meta["prereqs"]["runtime"]["requires"]["PostgreSQL"].as_str().expect("the least PostgreSQL");
    assert_eq!(semver(least)[0], 15);
    let tags = meta["tags"].as_array().expect("tags");
    assert!(tags.iter().all(|tag| tag.as_str().is_some_and(|tag| !tag.is_empty() && tag.len() < 256)));
}

fn semver(version: &str) -> Vec<u64> {
    version.split('.').map(|part| part.parse().unwrap_or_else(|_| panic!("{version} is no version"))).collect()
}
