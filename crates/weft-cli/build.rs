//! Passes the commit of the build to the program, so that a saved run names its build wherever the
//! program is copied. Without git or a checkout, the program only has its version.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../../Cargo.lock");
    // The sources of the program, and the files that change with a commit.
    for entry in Path::new("..").read_dir().into_iter().flatten().flatten() {
        println!("cargo:rerun-if-changed={}", entry.path().join("src").display());
    }
    for file in ["HEAD", "logs/HEAD"] {
        // A path that does not exist would run this script every time.
        let path = git(&["rev-parse", "--git-path", file]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let Some(commit) = commit() else {
        println!("cargo:rustc-env=WEFT_VERSION={version}");
        return;
    };
    println!("cargo:rustc-env=WEFT_COMMIT={commit}");
    println!("cargo:rustc-env=WEFT_VERSION={version} ({commit})");
}

/// The commit, with `-dirty` if tracked files differ from it.
fn commit() -> Option<String> {
    // A copy of this tree may lie in another project's checkout, whose commit would be meaningless.
    let root = git(&["rev-parse", "--show-toplevel"])?;
    let is_ours = Path::new(&root).join("crates/weft-cli/build.rs").is_file();
    is_ours.then(|| git(&["describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]))?
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
