//! The Dockerfile copies what there is, and what it puts into an image volume is an extension that a server can load from there.

use std::collections::BTreeSet;
use std::path::Path;

use agent_sessions_tests::{Cluster, Database, OwnCluster, Scratch};

use super::{config, project, text};

/// An instruction of a Dockerfile, with its continued lines, and its words.
struct Instruction {
    name: String,
    words: Vec<String>,
}

struct Stage {
    name: String,
    instructions: Vec<Instruction>,
}

/// What stands before the first FROM, and the stages.
fn stages(dockerfile: &str) -> (Vec<Instruction>, Vec<Stage>) {
    let joined = dockerfile.replace("\\\n", " ");
    let (mut first, mut stages): (Vec<Instruction>, Vec<Stage>) = (Vec::new(), Vec::new());
    for line in joined.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.split_whitespace().map(str::to_owned);
        let instruction = Instruction { name: words.next().expect("a word"), words: words.collect() };
        if instruction.name == "FROM" {
            let named = instruction.words.iter().position(|word| word == "AS");
            let name = named.map(|place| instruction.words[place + 1].clone()).unwrap_or_default();
            stages.push(Stage { name, instructions: vec![instruction] });
        } else {
            stages.last_mut().map_or(&mut first, |stage| &mut stage.instructions).push(instruction);
        }
    }
    (first, stages)
}

/// The names of `${NAME}` in a word.
fn variables(word: &str) -> impl Iterator<Item = &str> {
    word.split("${").skip(1).filter_map(|rest| rest.split('}').next())
}

fn arguments(instructions: &[Instruction]) -> BTreeSet<String> {
    let words =
        instructions.iter().filter(|instruction| instruction.name == "ARG").flat_map(|argument| &argument.words);
    words.map(|word| word.split('=').next().unwrap_or_default().to_owned()).collect()
}

/// What a stage copies: from which stage, sources, and destination.
fn copies(stage: &Stage) -> impl Iterator<Item = (Option<&str>, &[String], &str)> {
    stage.instructions.iter().filter(|instruction| instruction.name == "COPY").map(|copy| {
        let from = copy.words[0].strip_prefix("--from=");
        let paths = &copy.words[usize::from(from.is_some())..];
        let (to, sources) = paths.split_last().expect("COPY has a destination");
        (from, sources, to.as_str())
    })
}

#[test]
fn the_dockerfile_copies_what_there_is_and_uses_what_it_declares() {
    const KNOWN: [&str; 8] = ["FROM", "ARG", "RUN", "COPY", "ENV", "WORKDIR", "LABEL", "USER"];
    let (first, stages) = stages(&text("Dockerfile"));
    let ignored = text(".dockerignore");
    let global = arguments(&first);
    let mut earlier: BTreeSet<&str> = BTreeSet::new();
    for stage in &stages {
        let own = arguments(&stage.instructions);
        assert!(own.is_subset(&global), "{}: an argument without a default", stage.name);
        for instruction in &stage.instructions {
            assert!(KNOWN.contains(&instruction.name.as_str()), "{}: {}", stage.name, instruction.name);
            let known = if instruction.name == "FROM" { &global } else { &own };
            for variable in instruction.words.iter().flat_map(|word| variables(word)) {
                assert!(known.contains(variable), "{}: {variable} is not declared", stage.name);
            }
        }
        for (from, sources, _) in copies(stage) {
            match from {
                Some(from) => assert!(earlier.contains(from), "{}: there is no stage {from} before", stage.name),
                None => {
                    for source in sources {
                        assert!(project().join(source).exists(), "{}: there is no {source}", stage.name);
                        assert!(!ignored.lines().any(|line| line == source), "{source} is kept out");
                    }
                }
            }
        }
        earlier.insert(&stage.name);
    }
    let names: Vec<&str> = stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names, ["rust", "build", "extension", ""]);
    assert_eq!(stages[2].instructions[0].words, ["scratch", "AS", "extension"]);
    assert!(stages[3].instructions[0].words[0].starts_with("postgres:"));
    let mut build = stages[1].instructions.iter();
    let install = build.find(|run| {
        run.name == "RUN" && run.words.contains(&"install".to_owned()) && run.words.contains(&"make".to_owned())
    });
    assert!(install.expect("make install").words.contains(&"DESTDIR=/installed".to_owned()));
    // What the shell of the build steps runs is there, too.
    for script in ["scripts/cargo_pgrx.sh", "Makefile", "LICENSE"] {
        assert!(project().join(script).exists(), "{script}");
    }
}

/// The stage `extension` put into a folder, as CloudNativePG would mount it, from what is installed in the server under test.
fn payload(folder: &Path, major: u32, library: &Path, share: &Path) {
    let (_, stages) = stages(&text("Dockerfile"));
    let stage = stages.iter().find(|stage| stage.name == "extension").expect("the stage extension");
    for (from, sources, to) in copies(stage) {
        let [source] = sources else { panic!("{sources:?}") };
        let to = folder.join(to.trim_start_matches('/'));
        std::fs::create_dir_all(&to).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
        let source = match from {
            None => project().join(source),
            Some(_) => {
                match source.replace("${PG}", &major.to_string()).strip_prefix("/installed").expect("what is installed")
                {
                    path if path == format!("/usr/lib/postgresql/{major}/lib/") => library.to_owned(),
                    path if path == format!("/usr/share/postgresql/{major}/extension/") => share.join("extension"),
                    path => panic!("make install writes nothing to {path}"),
                }
            }
        };
        let files = if source.is_dir() {
            let entries = std::fs::read_dir(&source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
            entries.map(|entry| entry.expect("a file").path()).collect()
        } else {
            vec![source]
        };
        for file in files.iter().filter(|file| file.is_file()) {
            let name = file.file_name().expect("a name").to_string_lossy();
            if name.starts_with("agent_sessions") || name == "LICENSE" {
                std::fs::copy(file, to.join(&*name)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            }
        }
    }
}

/// As CloudNativePG configures a server, but with the mounted folders first, since this server has the extension already.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_volume_brings_the_extension() {
    let major = Cluster::major();
    if major < 18 {
        return;
    }
    let db = Database::empty("packages_volume").await;
    let volume = Scratch::new(&db, "volume");
    let folder = Path::new(volume.path());
    payload(folder, major, &config("--pkglibdir").await, &config("--sharedir").await);
    assert!(folder.join("licenses/agent_sessions/LICENSE").exists());
    let control_path = format!("extension_control_path = '{}/share'", volume.path());
    let library_path = format!("dynamic_library_path = '{}/lib:$libdir'", volume.path());
    let own = OwnCluster::start(&[&control_path, &library_path]).await;
    let superuser = own.cluster.connect(&own.cluster.superuser, "postgres").await;
    superuser.run("create extension agent_sessions").await;
    superuser.run("select agent_sessions.session_append('s', '1', on_missing => 'create')").await;
    superuser.assert_dense("s", 1).await;
    let maps = format!("/proc/{}/maps", superuser.pid);
    let maps = std::fs::read_to_string(&maps).unwrap_or_else(|error| panic!("{maps}: {error}"));
    assert!(maps.contains(&format!("{}/lib/agent_sessions.so", volume.path())), "another library is loaded");
}
