//! What has been released is frozen: the script of each version, in `sql/released`, and the updates from one to the next, in
//! `sql`, are listed there with their checksums. The version that Cargo.toml names is either one of those and has not changed
//! since, or is being developed and can be reached from the newest of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use agent_sessions_tests::Installation;
use sha2::{Digest, Sha256};

const LIST: &str = "released/SHA256SUMS";

fn sql() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sql")
}

/// The versions that have been released, the oldest first.
pub fn versions() -> Vec<String> {
    versions_in(&listed(&sql()).expect("a list of what has been released"))
}

/// The frozen script of a version.
pub fn script(version: &str) -> String {
    let path = sql().join(frozen(version));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn frozen(version: &str) -> String {
    format!("released/agent_sessions--{version}.sql")
}

fn update(from: &str, to: &str) -> String {
    format!("agent_sessions--{from}--{to}.sql")
}

/// The files of the list, each with its checksum.
fn listed(sql: &Path) -> Result<BTreeMap<String, String>, String> {
    let list = std::fs::read_to_string(sql.join(LIST)).map_err(|error| format!("{LIST}: {error}"))?;
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let entry = |line: &str| line.split_once("  ").map(|(sum, file)| (file.to_owned(), sum.to_owned()));
    lines.map(|line| entry(line).ok_or_else(|| format!("{LIST} has a line that is no checksum: {line}"))).collect()
}

fn versions_in(listed: &BTreeMap<String, String>) -> Vec<String> {
    let scripts = listed.keys().filter_map(|file| file.strip_prefix("released/agent_sessions--")?.strip_suffix(".sql"));
    let mut versions: Vec<String> = scripts.map(str::to_owned).collect();
    versions.sort_by_key(|version| order(version));
    versions
}

fn order(version: &str) -> Vec<u64> {
    version.split('.').map(|part| part.parse().unwrap_or_else(|_| panic!("{version} is no version"))).collect()
}

/// The names of the scripts in a folder.
fn scripts_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let names =
        entries.map(|entry| entry.expect("a readable folder").file_name().into_string().expect("a name in UTF-8"));
    names.filter(|name| name.starts_with("agent_sessions--") && name.ends_with(".sql")).collect()
}

/// What is wrong with the releases in a folder, while `current` is the version of the product, and `built` its script.
fn faults(sql: &Path, current: &str, built: &str) -> Vec<String> {
    let listed = match listed(sql) {
        Ok(listed) => listed,
        Err(fault) => return vec![fault],
    };
    let mut faults = Vec::new();
    for (file, sum) in &listed {
        match std::fs::read(sql.join(file)) {
            Ok(bytes) if format!("{:x}", Sha256::digest(&bytes)) == *sum => {}
            Ok(_) => faults.push(format!("{file} has changed since it was released")),
            Err(error) => faults.push(format!("{file}: {error}")),
        }
    }
    let versions = versions_in(&listed);
    let is_released = versions.iter().any(|version| version == current);
    for file in scripts_in(&sql.join("released")).iter().map(|name| format!("released/{name}")).chain(scripts_in(sql)) {
        let is_developed =
            !is_released && file.ends_with(&format!("--{current}.sql")) && !file.starts_with("released/");
        if !listed.contains_key(&file) && !is_developed {
            faults.push(format!("{file} is not in {LIST}"));
        }
    }
    for pair in versions.windows(2) {
        if !listed.contains_key(&update(&pair[0], &pair[1])) {
            faults.push(format!("no update leads from {} to {}", pair[0], pair[1]));
        }
    }
    let frozen = std::fs::read_to_string(sql.join(frozen(current))).unwrap_or_default();
    if is_released && without_places(built) != frozen {
        faults.push(format!("the script of {current} has changed since it was released: it needs a new version"));
    }
    if let (false, Some(newest)) = (is_released, versions.last()) {
        if order(current) < order(newest) {
            faults.push(format!("{current} is older than {newest}"));
        } else if !sql.join(update(newest, current)).exists() {
            faults.push(format!("no update leads from {newest} to {current}"));
        }
    }
    faults
}

/// A script without the lines that say where in the sources a statement stands: they change without it.
fn without_places(script: &str) -> String {
    script.split_inclusive('\n').filter(|line| !line.starts_with("-- src/")).collect()
}

/// Of the control file that is installed.
fn default_version(installation: &Installation) -> String {
    let control = installation.control();
    let line = control.lines().find_map(|line| line.strip_prefix("default_version = '"));
    line.and_then(|rest| rest.strip_suffix('\'')).unwrap_or_else(|| panic!("no version in {control}")).to_owned()
}

#[test]
fn what_has_been_released_is_as_it_was() {
    let installation = Installation::under_test();
    let current = default_version(&installation);
    assert_eq!(faults(&sql(), &current, &installation.script(&current)), [""; 0]);
}

/// A clone with as much as releases need.
struct Clone(PathBuf);

impl Clone {
    fn new(name: &str) -> Clone {
        let clone = Clone(std::env::temp_dir().join(format!("agent_sessions_{}_{name}", std::process::id())));
        for folder in ["sql/released", "scripts"] {
            std::fs::create_dir_all(clone.0.join(folder)).expect("a folder");
        }
        for script in ["freeze.sh", "workspace.sh"] {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts").join(script);
            std::fs::copy(source, clone.0.join("scripts").join(script)).expect("a copy");
        }
        clone.write("sql/released/SHA256SUMS", "# a list\n");
        clone
    }

    fn sql(&self) -> PathBuf {
        self.0.join("sql")
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    fn remove(&self, file: &str) {
        std::fs::remove_file(self.0.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.0.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    /// Runs the script that a release runs; whether it succeeded.
    fn freeze(&self, version: &str, built: &str) -> bool {
        self.write(
            "Cargo.toml",
            &format!("[package]\nname = \"x\"\nversion = \"{version}\"\n[features]\nversion = \"7\"\n"),
        );
        let script = format!("agent_sessions--{version}.sql");
        self.write(&script, built);
        let freeze = Command::new(self.0.join("scripts/freeze.sh")).arg(self.0.join(script)).output();
        freeze.expect("it runs").status.success()
    }

    /// The faults, when there is exactly one, and none after `repair`.
    fn assert_one_fault(&self, current: &str, built: &str, about: &str) {
        let faults = faults(&self.sql(), current, built);
        assert!(faults.len() == 1 && faults[0].contains(about), "{about}: {faults:?}");
    }

    fn assert_no_fault(&self, current: &str, built: &str) {
        assert_eq!(faults(&self.sql(), current, built), [""; 0]);
    }
}

impl Drop for Clone {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn each_way_to_change_a_release_is_found() {
    let clone = Clone::new("releases");
    // Before the first release there is nothing to keep, and any version may be developed.
    clone.assert_no_fault("0.1.0", "select 1;");
    clone.assert_no_fault("7.0.0", "");

    let built = "-- src/lib.rs:10\nselect 1;\n";
    assert!(clone.freeze("0.9.0", built));
    clone.assert_no_fault("0.9.0", built);
    // Another place in the sources is no other script.
    clone.assert_no_fault("0.9.0", "-- src/lib.rs:11\nselect 1;\n");
    clone.assert_one_fault("0.9.0", "select 2;\n", "needs a new version");
    assert!(!clone.freeze("0.9.0", "select 2;\n"), "a release is made once");
    clone.assert_no_fault("0.9.0", built);
    clone.assert_one_fault("0.8.9", built, "older than 0.9.0");

    // The next one is developed: 0.10.0 comes behind 0.9.0.
    let update = "sql/agent_sessions--0.9.0--0.10.0.sql";
    clone.assert_one_fault("0.10.0", "select 2;", "no update leads from 0.9.0 to 0.10.0");
    clone.write(update, "select 2;");
    clone.assert_no_fault("0.10.0", "select 2;");
    clone.write(update, "select 3;");
    clone.assert_no_fault("0.10.0", "select 3;");
    clone.write("sql/agent_sessions--0.1.0--0.2.0.sql", "");
    clone.assert_one_fault("0.10.0", "select 3;", "agent_sessions--0.1.0--0.2.0.sql is not in");
    clone.remove("sql/agent_sessions--0.1.0--0.2.0.sql");

    assert!(clone.freeze("0.10.0", "select 3;\n"));
    clone.assert_no_fault("0.10.0", "select 3;\n");
    for file in [update, "sql/released/agent_sessions--0.9.0.sql", "sql/released/agent_sessions--0.10.0.sql"] {
        let kept = clone.read(file);
        clone.write(file, &(kept.clone() + " "));
        assert!(
            faults(&clone.sql(), "0.10.0", "select 3;\n")[0].contains("has changed since it was released"),
            "{file}"
        );
        clone.remove(file);
        assert!(!faults(&clone.sql(), "0.10.0", "select 3;\n").is_empty(), "{file}");
        clone.write(file, &kept);
        clone.assert_no_fault("0.10.0", "select 3;\n");
    }
    clone.write("sql/released/agent_sessions--0.9.5.sql", "");
    clone.assert_one_fault("0.10.0", "select 3;\n", "agent_sessions--0.9.5.sql is not in");
    clone.remove("sql/released/agent_sessions--0.9.5.sql");

    let list = clone.read("sql/released/SHA256SUMS");
    let without: String = list.split_inclusive('\n').filter(|line| !line.contains("0.9.0--0.10.0")).collect();
    clone.write("sql/released/SHA256SUMS", &without);
    let found = faults(&clone.sql(), "0.10.0", "select 3;\n");
    assert!(found.iter().any(|fault| fault.contains("no update leads from 0.9.0 to 0.10.0")), "{found:?}");
    clone.write("sql/released/SHA256SUMS", &(list + "not a checksum\n"));
    clone.assert_one_fault("0.10.0", "select 3;\n", "no checksum");
    clone.remove("sql/released/SHA256SUMS");
    clone.assert_one_fault("0.10.0", "select 3;\n", "SHA256SUMS");
}
