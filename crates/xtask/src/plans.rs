//! The schema of plan files. It comes from the program's own options, so the program tells
//! it: `overlane lab plans --schema`.

use std::process::Command;

use anyhow::{Context, ensure};

use crate::schema::directory;

/// Writes `schema/plan.schema.json`; whether it changed.
///
/// # Errors
/// When the program cannot be built or run, or the file cannot be written.
pub fn write() -> anyhow::Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["run", "--quiet", "--locked", "--package", "overlane", "--"];
    let output = Command::new(cargo)
        .args(arguments)
        .args(["lab", "plans", "--schema"])
        .current_dir(directory())
        .output()
        .context("run cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "overlane lab plans --schema: {}: {said}", output.status);
    let path = directory().join("plan.schema.json");
    if std::fs::read(&path).is_ok_and(|kept| kept == output.stdout) {
        return Ok(false);
    }
    std::fs::write(&path, &output.stdout).with_context(|| format!("write {}", path.display()))?;
    Ok(true)
}
