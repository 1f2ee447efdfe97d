//! The schema of plan files. It derives from the options of `overlane`, so the program prints it:
//! `overlane lab plans --schema`.

use std::process::Command;

use anyhow::{Context, ensure};

use crate::schema::directory;

/// Writes `schema/plan.schema.json`. Returns whether it changed.
///
/// # Errors
/// If the program cannot be built or run, or the file cannot be written.
pub fn write() -> anyhow::Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["run", "--quiet", "--locked", "--package", "overlane", "--"];
    // The options are private to the program's binary crate, so run it instead of linking it.
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
