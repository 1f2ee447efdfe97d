//! Compiles a crate's BPF programs with clang, as the whole job of its `build.rs`.
//!
//! `bpf/NAME.bpf.c` becomes `OUT_DIR/NAME.bpf.o`, which the crate's loader embeds. Definitions
//! shared by programs are in `include/bpf.h` of this crate.

#![forbid(unsafe_code)]

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Directory of sources in the crate being built.
const SOURCES: &str = "bpf";
const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include");

/// Compiles every program of the crate being built. Reports errors to cargo.
pub fn compile() -> ExitCode {
    println!("cargo::rerun-if-changed={SOURCES}");
    println!("cargo::rerun-if-changed={INCLUDE}");
    println!("cargo::rerun-if-env-changed=CLANG");
    match sources().and_then(|sources| sources.iter().try_for_each(|source| object(source))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            // A cargo directive is a single line.
            println!("cargo::error={}", reason.replace('\n', " | "));
            ExitCode::FAILURE
        }
    }
}

fn sources() -> Result<Vec<PathBuf>, String> {
    let entries = Path::new(SOURCES).read_dir().map_err(|e| format!("read {SOURCES}/: {e}"))?;
    let mut sources = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| format!("read {SOURCES}/: {e}"))?.path();
        if path.to_string_lossy().ends_with(".bpf.c") {
            sources.push(path);
        }
    }
    Ok(sources)
}

fn object(source: &Path) -> Result<(), String> {
    let out_dir = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set: run by cargo only")?;
    let name = source.file_name().ok_or("a source has a file name")?;
    let object = PathBuf::from(out_dir).join(name).with_extension("o");
    // Constants and maps use the target's byte order.
    let target = match env::var("CARGO_CFG_TARGET_ENDIAN").as_deref() {
        Ok("big") => "bpfeb",
        _ => "bpfel",
    };
    // The program embeds the object with its debug information. Paths of the builder in it would
    // make two builds differ.
    let crate_directory = env!("CARGO_MANIFEST_DIR");
    let top = crate_directory.strip_suffix("/crates/bpf-build").unwrap_or(crate_directory);
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let output = Command::new(&clang)
        .args(["-g", "-O2", "-Wall", "-mcpu=v3", "-target", target, "-I", INCLUDE])
        .arg(format!("-ffile-prefix-map={top}=/overlane"))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(&object)
        .output()
        .map_err(|e| {
            format!(
                "{clang} cannot be run to compile {}: {e}. \
                 On Debian: apt install clang libelf-dev zlib1g-dev pkg-config",
                source.display()
            )
        })?;
    let messages = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let source = source.display();
        return Err(format!("{clang} on {source}: {}: {}", output.status, messages.trim()));
    }
    for line in messages.lines().filter(|line| line.contains("warning:")) {
        println!("cargo::warning={line}");
    }
    Ok(())
}
