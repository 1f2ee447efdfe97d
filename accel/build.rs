//! Compiles the BPF programs with clang into `OUT_DIR`, from where the loader
//! embeds them.

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const SOURCE: &str = "bpf/fastpath.bpf.c";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-changed=bpf/abi.h");
    println!("cargo::rerun-if-env-changed=CLANG");
    match compile() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            println!("cargo::error={reason}");
            ExitCode::FAILURE
        }
    }
}

fn compile() -> Result<(), String> {
    let out_dir = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set: run by cargo only")?;
    let object = PathBuf::from(out_dir).join("fastpath.bpf.o");
    // Constants and maps are in the target's byte order.
    let target = match env::var("CARGO_CFG_TARGET_ENDIAN").as_deref() {
        Ok("big") => "bpfeb",
        _ => "bpfel",
    };
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let output = Command::new(&clang)
        .args(["-g", "-O2", "-Wall", "-mcpu=v3", "-target", target, "-c", SOURCE, "-o"])
        .arg(&object)
        .output()
        .map_err(|e| {
            format!(
                "{clang} cannot be run to compile {SOURCE}: {e}. \
                 On Debian: apt install clang libelf-dev zlib1g-dev pkg-config"
            )
        })?;
    let messages = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        // One directive is one line.
        return Err(format!("{clang} on {SOURCE}: {}: {}", output.status, messages.trim())
            .replace('\n', " | "));
    }
    for line in messages.lines().filter(|line| line.contains("warning:")) {
        println!("cargo::warning={line}");
    }
    Ok(())
}
