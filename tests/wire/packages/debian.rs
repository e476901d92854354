//! The .deb has what Debian wants of one, and the same bytes each time.

use std::io::Write;
use std::path::Path;

use agent_sessions_tests::{Cluster, Database, Program, Scratch};

use super::{VERSION, config, project, text};

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
