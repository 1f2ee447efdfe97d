//! The kernel that guests boot: an image, and its modules that a guest needs.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::unsupported::Unsupported;

/// Modules that a guest's devices need. Some kernels have them built in.
const NEEDED: [&str; 3] = ["virtio_pci", "virtio_net", "virtio_console"];
/// Size of an image's head with boot header and version, bytes.
const HEAD: usize = 64 * 1024;
/// Size limit of a kernel image, bytes.
const LARGEST: u64 = 256 << 20;

/// A bootable kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    image: PathBuf,
    version: String,
    /// Directory of its modules. Without one, everything needed must be built in.
    directory: Option<PathBuf>,
    /// Modules that a guest needs and that are not built in, in load order.
    modules: Vec<PathBuf>,
}

/// A file that cannot be booted.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The file cannot be read.
    #[error("{path}: {error}")]
    Read { path: PathBuf, error: std::io::Error },
    /// The file is not a kernel image.
    #[error("{path} is no kernel image: expected an x86 bzImage (HdrS at byte 0x202), got {got}")]
    NoImage {
        path: PathBuf,
        /// Description of its contents.
        got: String,
    },
    /// A required module is neither built in nor installed.
    #[error("kernel {version} of {image}: no module {module} in {directory}")]
    NoModule {
        image: PathBuf,
        version: String,
        module: String,
        /// Directory of the kernel's modules.
        directory: PathBuf,
    },
}

/// The kernel of `--guest-kernel`.
static GIVEN: OnceLock<Kernel> = OnceLock::new();

/// Makes guests boot this kernel. Only the first call has an effect.
pub fn use_kernel(kernel: Kernel) {
    let _ = GIVEN.set(kernel);
}

impl Kernel {
    /// Opens an image. Its modules are in `lib/modules` beside the image's directory, or in this
    /// machine's `/lib/modules`.
    pub fn open(image: &Path) -> Result<Kernel, KernelError> {
        let failed = |error| KernelError::Read { path: image.to_owned(), error };
        let file = std::fs::File::open(image).map_err(failed)?;
        let no_image = |got: String| KernelError::NoImage { path: image.to_owned(), got };
        let meta = file.metadata().map_err(failed)?;
        // A device or pipe may never end.
        if !meta.is_file() {
            return Err(no_image("not a regular file".to_owned()));
        }
        // The image is read into memory later.
        if meta.len() > LARGEST {
            return Err(no_image(format!("{} bytes", meta.len())));
        }
        let mut head = Vec::new();
        file.take(HEAD as u64).read_to_end(&mut head).map_err(failed)?;
        let version = version(&head).map_err(no_image)?;
        let beside = image.parent().and_then(Path::parent).map(|root| root.join("lib/modules"));
        let roots = beside.into_iter().chain([PathBuf::from("/lib/modules")]);
        let directory = roots.map(|root| root.join(&version)).find(|at| at.is_dir());
        let bare = Kernel { image: image.to_owned(), version, directory, modules: Vec::new() };
        bare.and(&NEEDED)
    }

    /// Returns the kernel with these modules and their dependencies added.
    ///
    /// # Errors
    /// [`KernelError::NoModule`] if the kernel has a module directory and one of these modules is
    /// neither in it nor built in.
    pub(crate) fn and(&self, modules: &[&str]) -> Result<Kernel, KernelError> {
        let mut more = self.clone();
        // A kernel without modules has everything built in, or does not boot.
        let Some(directory) = &self.directory else { return Ok(more) };
        let files = files_of(directory, modules).map_err(|module| KernelError::NoModule {
            image: self.image.clone(),
            version: self.version.clone(),
            module,
            directory: directory.clone(),
        })?;
        more.modules.extend(files.into_iter().filter(|file| !self.modules.contains(file)));
        Ok(more)
    }

    /// Returns the kernel for guests: the one given by option, or this machine's own, or the last
    /// one in `/boot` by name.
    pub(crate) fn find() -> Result<Kernel, Unsupported> {
        if let Some(given) = GIVEN.get() {
            return Ok(given.clone());
        }
        let own = nix::sys::utsname::uname().map(|name| name.release().to_owned());
        let own = own.ok().and_then(|release| release.into_string().ok());
        let own = own.map(|release| {
            [format!("/boot/vmlinuz-{release}"), format!("/lib/modules/{release}/vmlinuz")]
        });
        let mut others: Vec<PathBuf> = std::fs::read_dir("/boot")
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("vmlinuz-"))
            .map(|entry| entry.path())
            .collect();
        others.sort();
        let own = own.into_iter().flatten().map(PathBuf::from);
        let candidates = own.chain(others.into_iter().rev());
        // Skip images that cannot be read or that lack virtio.
        candidates.filter_map(|image| Kernel::open(&image).ok()).next().ok_or_else(|| {
            Unsupported::new(
                "no kernel image for guests (/boot/vmlinuz-*, with virtio)",
                "give one by --guest-kernel FILE, or apt install linux-image-cloud-amd64",
            )
        })
    }

    pub(crate) fn image(&self) -> &Path {
        &self.image
    }

    /// Module files in load order.
    pub(crate) fn modules(&self) -> &[PathBuf] {
        &self.modules
    }
}

/// Returns the version of a bzImage from its boot header (`Documentation/arch/x86/boot.rst`), or
/// a description of the contents.
fn version(head: &[u8]) -> Result<String, String> {
    // An image that was not written completely.
    if head.is_empty() {
        return Err("an empty file".to_owned());
    }
    // The version is in the header of a bzImage only (Documentation/arch/x86/boot.rst).
    if head.get(0x1fe..0x200) != Some(&[0x55, 0xaa]) || head.get(0x202..0x206) != Some(b"HdrS") {
        let first = head.iter().take(4).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>();
        return Err(format!("a file that begins with {}", first.join(" ")));
    }
    let at = head.get(0x20e..0x210).map_or(0, |at| usize::from(at[0]) | usize::from(at[1]) << 8);
    let text = head.get(at + 0x200..).unwrap_or_default();
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let version = String::from_utf8_lossy(text);
    // The version becomes part of a path: no slashes.
    let version = version.split_whitespace().next().filter(|v| at != 0 && !v.contains('/'));
    version.map(str::to_owned).ok_or_else(|| "an image without a version".to_owned())
}

/// Returns the files of modules and their dependencies in load order, without built-in modules;
/// or the name of a missing one.
fn files_of(directory: &Path, modules: &[&str]) -> Result<Vec<PathBuf>, String> {
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap_or_default();
    let (built_in, dependencies) = (read("modules.builtin"), read("modules.dep"));
    let mut files = Vec::new();
    for &module in modules {
        // There is nothing to load.
        if built_in.lines().any(|path| is_of(path, module)) {
            continue;
        }
        let line = dependencies
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(path, _)| is_of(path, module))
            .ok_or(module)?;
        // modules.dep lists dependencies in reverse load order (depmod(8)).
        let ordered = line.1.split_whitespace().rev().chain([line.0]);
        for path in ordered.map(|path| directory.join(path)) {
            if !files.contains(&path) {
                files.push(path);
            }
        }
    }
    Ok(files)
}

/// Returns whether a path such as `kernel/net/x.ko.xz` belongs to a module.
fn is_of(path: &str, module: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or_default();
    file.split(".ko").next().is_some_and(|name| name.replace('-', "_") == module)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(version: &str) -> Vec<u8> {
        let mut bytes = vec![0; 0x1000];
        bytes[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x20e..0x210].copy_from_slice(&0x400u16.to_le_bytes());
        bytes[0x600..0x600 + version.len()].copy_from_slice(version.as_bytes());
        bytes
    }

    #[test]
    fn a_kernel_image_has_a_version_and_other_files_are_identified() {
        assert_eq!(version(&image("6.1.0-9 (root@x) #1")), Ok("6.1.0-9".to_owned()));
        for (bytes, got) in [
            (b"".to_vec(), "an empty file"),
            (b"\x7fELF and more".to_vec(), "a file that begins with 7f 45 4c 46"),
            (image(""), "an image without a version"),
            (image("../x y"), "an image without a version"),
        ] {
            assert_eq!(version(&bytes), Err(got.to_owned()));
        }
    }

    #[test]
    fn modules_are_loaded_after_those_that_they_need() {
        let root = tempfile::tempdir().unwrap();
        let (boot, modules) = (root.path().join("boot"), root.path().join("lib/modules/6.9"));
        std::fs::create_dir_all(&boot).unwrap();
        std::fs::create_dir_all(&modules).unwrap();
        let path = boot.join("vmlinuz");
        std::fs::write(&path, image("6.9")).unwrap();
        let missing = Kernel::open(&path).unwrap_err().to_string();
        assert!(missing.contains("no module virtio_pci"), "{missing}");
        std::fs::write(modules.join("modules.builtin"), "kernel/virtio_pci.ko\n").unwrap();
        let dep = "a/virtio_net.ko.xz: b/net_failover.ko.xz b/failover.ko.xz\n\
                   b/failover.ko.xz:\na/virtio-console.ko.xz: b/failover.ko.xz\n";
        std::fs::write(modules.join("modules.dep"), dep).unwrap();
        let kernel = Kernel::open(&path).unwrap();
        assert_eq!(kernel.version, "6.9");
        let wanted = [
            "b/failover.ko.xz",
            "b/net_failover.ko.xz",
            "a/virtio_net.ko.xz",
            "a/virtio-console.ko.xz",
        ];
        assert_eq!(kernel.modules(), wanted.map(|path| modules.join(path)));
        // Modules that are already in the list are not added again.
        std::fs::write(
            modules.join("modules.dep"),
            format!("{dep}c/8021q.ko.xz: b/failover.ko.xz c/mrp.ko.xz\n"),
        )
        .unwrap();
        let more = kernel.and(&["8021q"]).unwrap();
        assert_eq!(more.modules()[4..], ["c/mrp.ko.xz", "c/8021q.ko.xz"].map(|p| modules.join(p)));
        let missing = kernel.and(&["ipvlan"]).unwrap_err().to_string();
        assert!(missing.contains("kernel 6.9 of") && missing.contains("no module ipvlan"));
    }
}
