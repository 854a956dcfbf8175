//! Finds the migrations that outbox-postgres ships in its package but exports nowhere.
//!
//! It must never copy them into this repository.

use std::error::Error;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=Cargo.lock");
    let cargo = std::env::var("CARGO")?;
    let output = Command::new(cargo).args(["metadata", "--format-version", "1", "--locked"]).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let manifest = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == "outbox-postgres")
        .and_then(|package| package["manifest_path"].as_str())
        .ok_or("outbox-postgres is not among the dependencies")?;
    let folder = manifest.trim_end_matches("Cargo.toml");
    println!("cargo::rustc-env=OUTBOX_MIGRATIONS={folder}migrations/");
    Ok(())
}
