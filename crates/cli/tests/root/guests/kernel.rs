//! Kernels that guests of tests boot, and one that does not boot.

use std::path::{Path, PathBuf};

use test_support::need;

/// Debian's kernel as crates/lab/tests/guest/fetch-kernel stores it, or another.
pub fn kernel() -> Result<PathBuf, String> {
    need::root()?;
    need::tool("qemu-system-x86_64")?;
    let fetched = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/guest-kernel");
    let named = std::env::var_os("OVERLANE_GUEST_KERNEL").map(PathBuf::from);
    let roots = named.map_or_else(|| vec![PathBuf::from(fetched), PathBuf::from("/")], |r| vec![r]);
    let images = roots.iter().flat_map(|root| std::fs::read_dir(root.join("boot")).ok());
    let mut images: Vec<PathBuf> = images
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("vmlinuz-"))
        .collect();
    images.sort();
    images.pop().ok_or_else(|| {
        "no kernel for guests; run crates/lab/tests/guest/fetch-kernel, or apt install \
         linux-image-cloud-amd64"
            .to_owned()
    })
}

/// A copy of that kernel below `directory` that crashes at once.
pub fn broken(kernel: &Path, directory: &Path) -> PathBuf {
    let mut image = std::fs::read(kernel).unwrap();
    // The entry point behind the boot code's own sectors (boot.rst) becomes UD2, without a handler.
    let begin = (usize::from(image[0x1f1]) + 1) * 512;
    for pair in image[begin..begin + 4096].chunks_exact_mut(2) {
        pair.copy_from_slice(&[0x0f, 0x0b]);
    }
    let boot = directory.join("boot");
    std::fs::create_dir_all(&boot).unwrap();
    let broken = boot.join("vmlinuz-broken");
    std::fs::write(&broken, image).unwrap();
    broken
}
