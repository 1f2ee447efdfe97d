//! Compiles the BPF programs with clang into `OUT_DIR`, from where the sampler
//! embeds them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const SOURCES: [&str; 2] = ["bpf/cpu_clock.bpf.c", "bpf/drops.bpf.c"];

fn main() -> ExitCode {
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    println!("cargo::rerun-if-env-changed=CLANG");
    match SOURCES.into_iter().try_for_each(compile) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            println!("cargo::error={reason}");
            ExitCode::FAILURE
        }
    }
}

fn compile(source: &str) -> Result<(), String> {
    let out_dir = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set: run by cargo only")?;
    let name = Path::new(source).file_name().ok_or("a source has a file name")?;
    let object = PathBuf::from(out_dir).join(name).with_extension("o");
    // Maps are read in the target's byte order.
    let target = match env::var("CARGO_CFG_TARGET_ENDIAN").as_deref() {
        Ok("big") => "bpfeb",
        _ => "bpfel",
    };
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let output = Command::new(&clang)
        .args(["-g", "-O2", "-Wall", "-mcpu=v3", "-target", target, "-c", source, "-o"])
        .arg(&object)
        .output()
        .map_err(|e| {
            format!(
                "{clang} cannot be run to compile {source}: {e}. \
                 On Debian: apt install clang libelf-dev zlib1g-dev pkg-config"
            )
        })?;
    let messages = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        // One directive is one line.
        return Err(format!("{clang} on {source}: {}: {}", output.status, messages.trim())
            .replace('\n', " | "));
    }
    for line in messages.lines().filter(|line| line.contains("warning:")) {
        println!("cargo::warning={line}");
    }
    Ok(())
}
