//! A small disk in a server's directory: a tmpfs that only the server sees, in a mount namespace of its own, so that nothing
//! stays mounted when the server ends, however that ends.

use std::path::Path;
use std::process::Command;

use super::own_directory::OwnDirectory;
use crate::Program;

/// Mounts it, and goes on as the server's user.
const MOUNT: &str = r#"mount -t tmpfs -o "size=$1,mode=0700,uid=$2,gid=$3" small "$0" || exit
user=$2 group=$3
shift 3
exec setpriv --reuid "$user" --regid "$group" --clear-groups env -i PATH="$PATH" LC_ALL=C.UTF-8 "$@""#;

/// Whether this machine lets the tests mount one; that takes root, and not every container is allowed to.
pub fn is_possible() -> bool {
    let tried = Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "small", "/mnt"]).output();
    tried.is_ok_and(|tried| tried.status.success())
}

/// A program that sees the small disk in the folder, and shows it to all that it starts.
pub fn program(directory: &OwnDirectory, folder: &str, size: &str, program: &Path) -> Program {
    let place = directory.path.join(folder);
    let (uid, gid) = directory.user.ids();
    let [place, program] = [&place, program].map(|path| path.display().to_string());
    Program::new(Path::new("unshare")).args(["--mount", "sh", "-c", MOUNT, &place, size, &uid, &gid, &program])
}
