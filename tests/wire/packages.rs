//! What the extension is packed into: the version is the same everywhere, the Dockerfile copies what there is, META.json is valid
//! for PGXN, and the .deb has what Debian wants of one.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use agent_sessions_tests::{Cluster, Database, OwnCluster, Program, Scratch};
use serde_json::Value;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(path: &str) -> String {
    let file = project().join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The value of the first line `key = "value"`.
fn toml_value<'a>(manifest: &'a str, key: &str) -> &'a str {
    let line = manifest.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='));
    line.unwrap_or_else(|| panic!("no {key}")).trim().trim_matches('"')
}

#[tokio::test(flavor = "multi_thread")]
async fn the_version_is_the_same_everywhere() {
    let db = Database::create("packages_version").await;
    let connection = db.reader().await;
    let schema: String = connection.value("select agent_sessions.schema_version()", &[]).await;
    let control = "select default_version from pg_available_extensions where name = 'agent_sessions'";
    let control: String = connection.value(control, &[]).await;
    let require = "select agent_sessions.schema_require(min => $1::text, max => $1::text)";
    connection.execute(require, &[&VERSION]).await.expect("the library is of that version, too");

    let manifests = ["Cargo.toml", "core/Cargo.toml", "tests/Cargo.toml"].map(text);
    let meta: Value = serde_json::from_str(&text("META.json")).expect("META.json");
    let dockerfile = text("Dockerfile");
    let changelog = text("CHANGELOG.md");
    let newest = changelog.lines().find_map(|line| line.strip_prefix("## [")?.split(']').next());
    let mut said: BTreeMap<&str, &str> = BTreeMap::from([
        ("schema_version()", schema.as_str()),
        ("the control file", &control),
        ("META.json", meta["version"].as_str().unwrap_or_default()),
        ("META.json, provides", meta["provides"]["agent_sessions"]["version"].as_str().unwrap_or_default()),
        ("Dockerfile", dockerfile.lines().find_map(|line| line.strip_prefix("ARG VERSION=")).unwrap_or_default()),
        ("CHANGELOG.md", newest.unwrap_or_default()),
    ]);
    for (name, manifest) in ["Cargo.toml", "core/Cargo.toml", "tests/Cargo.toml"].into_iter().zip(&manifests) {
        said.insert(name, toml_value(manifest, "version"));
    }
    said.retain(|_, version| *version != VERSION);
    assert!(said.is_empty(), "{VERSION} was expected: {said:?}");
}

/// Text files of the project, those aside that only machines write.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if ["target", ".git", "node_modules", "__pycache__", "Cargo.lock"].contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn tools_are_named_with_one_version() {
    let manifest = text("Cargo.toml");
    let pgrx = manifest.split("pgrx = { version = \"=").nth(1).and_then(|rest| rest.split('"').next());
    let pgrx = pgrx.expect("pgrx is pinned");
    let mut files = Vec::new();
    sources(&project(), &mut files);
    let naming: Vec<String> = files
        .iter()
        .filter(|file| std::fs::read_to_string(file).is_ok_and(|text| text.contains(pgrx)))
        .map(|file| file.file_name().unwrap_or_default().to_string_lossy().into_owned())
        .collect();
    assert_eq!(naming, ["Cargo.toml"], "files that name pgrx {pgrx}");

    let rust = toml_value(&manifest, "rust-version");
    for manifest in ["core/Cargo.toml", "tests/Cargo.toml"] {
        assert_eq!(toml_value(&text(manifest), "rust-version"), rust, "{manifest}");
    }
    assert!(text("Dockerfile").contains(&format!("FROM rust:{rust}-")), "Dockerfile: another Rust than {rust}");
    assert!(text("README.md").contains(&format!("Rust {rust}")), "README.md: another Rust than {rust}");
    assert!(text("scripts/setup.sh").contains(&format!("Rust {rust}")), "setup.sh: another Rust than {rust}");
}

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

async fn config(what: &str) -> PathBuf {
    let said = Program::new(&Cluster::programs().join("pg_config")).args([what]).output().await;
    PathBuf::from(said.trim())
}

/// As CloudNativePG configures a server: the extension is found nowhere but in the mounted folders.
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
    let library_path = format!("dynamic_library_path = '{}/lib'", volume.path());
    let own = OwnCluster::start(&[&control_path, &library_path]).await;
    let superuser = own.cluster.connect(&own.cluster.superuser, "postgres").await;
    superuser.run("create extension agent_sessions").await;
    superuser.run("select agent_sessions.session_append('s', '1', on_missing => 'create')").await;
    superuser.assert_dense("s", 1).await;
    let maps = format!("/proc/{}/maps", superuser.pid);
    let maps = std::fs::read_to_string(&maps).unwrap_or_else(|error| panic!("{maps}: {error}"));
    assert!(maps.contains(&format!("{}/lib/agent_sessions.so", volume.path())), "another library is loaded");
}

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

#[tokio::test(flavor = "multi_thread")]
async fn a_debian_package_has_what_debian_wants() {
    let major = Cluster::major();
    let library = config("--pkglibdir").await;
    let Some(root) = library.to_str().and_then(|path| path.strip_suffix(&format!("usr/lib/postgresql/{major}/lib")))
    else {
        writeln!(std::io::stdout(), "no .deb is made: {} is not of a Debian package", library.display())
            .expect("standard output");
        return;
    };
    let db = Database::empty("packages_deb").await;
    let (first, second) = (Scratch::new(&db, "first"), Scratch::new(&db, "second"));
    let make = async |folder: &str| {
        let script = project().join("scripts/debian_package.sh");
        let made =
            Program::new(&script).args([&major.to_string(), root, folder]).env("SOURCE_DATE_EPOCH", "1800000000");
        made.output().await.trim().to_owned()
    };
    let package = make(first.path()).await;
    let name = format!("postgresql-{major}-agent-sessions");
    let shown = async |query: &str| {
        Program::new(Path::new("dpkg-deb")).args(["--show", &format!("--showformat={query}"), &package]).output().await
    };
    assert!(package.ends_with(&format!("/{name}_{VERSION}-1_{}.deb", shown("${Architecture}").await)), "{package}");
    assert_eq!(
        shown("${Package} ${Version} ${Section} ${Priority}").await,
        format!("{name} {VERSION}-1 database optional")
    );
    let depends = shown("${Depends}").await;
    assert!(depends.starts_with(&format!("postgresql-{major}, ")) && depends.contains("libc6 (>= "), "{depends}");

    let again = make(second.path()).await;
    assert!(
        std::fs::read(&package).expect("the package") == std::fs::read(&again).expect("the other"),
        "the bytes differ"
    );

    // Unpacked, the files are those of the sums, and only those.
    let unpacked = format!("{}/unpacked", second.path());
    Program::new(Path::new("dpkg-deb")).args(["--raw-extract", &package, &unpacked]).output().await;
    let check = "cd \"$1\" && md5sum --quiet --check DEBIAN/md5sums && find usr -type f | sort && awk '{print $2}' DEBIAN/md5sums | sort >&2";
    let checked = Program::new(Path::new("sh")).args(["-c", check, "sh", &unpacked]).run().await;
    assert!(checked.success, "{}", checked.stderr);
    let files = String::from_utf8(checked.stdout).expect("names in UTF-8");
    assert_eq!(files, checked.stderr);
    let (extension, documents) = (format!("usr/share/postgresql/{major}/extension"), format!("usr/share/doc/{name}"));
    for file in [
        format!("usr/lib/postgresql/{major}/lib/agent_sessions.so"),
        format!("{extension}/agent_sessions.control"),
        format!("{extension}/agent_sessions--{VERSION}.sql"),
        format!("{documents}/copyright"),
        format!("{documents}/changelog.gz"),
        format!("{documents}/changelog.Debian.gz"),
    ] {
        assert!(files.lines().any(|line| line == file), "there is no {file} in\n{files}");
    }
    let copyright = std::fs::read_to_string(format!("{unpacked}/{documents}/copyright")).expect("copyright");
    let (mut terms, copyright) = (text("LICENSE"), copyright.replace("\n .\n", "\n\n").replace("\n ", "\n"));
    terms = terms.split_once("\n\n").and_then(|(_, rest)| rest.split_once("\n\n")).expect("terms").1.to_owned();
    assert!(copyright.contains(terms.trim()), "{copyright}");
}
