//! The kernel that guests boot: an image, and the modules that a guest needs of it.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::unsupported::Unsupported;

/// Modules without which a guest has no device; built into some kernels.
const NEEDED: [&str; 3] = ["virtio_pci", "virtio_net", "virtio_console"];
/// Bytes of an image's beginning that hold the boot header and the version.
const HEAD: usize = 64 * 1024;
/// Larger files are no kernel images.
const LARGEST: u64 = 256 << 20;

/// A kernel that can be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    image: PathBuf,
    version: String,
    /// Where its modules are; one without has everything built in, or does not come up.
    directory: Option<PathBuf>,
    /// Those that a guest needs, in the order of loading, where they are not built in.
    modules: Vec<PathBuf>,
}

/// A file that cannot be booted.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// It cannot be read.
    #[error("{path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of opening or reading it.
        error: std::io::Error,
    },
    /// It is something else.
    #[error("{path} is no kernel image: expected a bzImage of x86 (HdrS at byte 0x202), got {got}")]
    NoImage {
        /// The file.
        path: PathBuf,
        /// What is there.
        got: String,
    },
    /// A module that a guest needs is neither built in nor there.
    #[error("kernel {version} of {image}: no module {module} in {directory}")]
    NoModule {
        /// The image.
        image: PathBuf,
        /// Its version.
        version: String,
        /// The module.
        module: String,
        /// Where it was looked for.
        directory: PathBuf,
    },
}

/// The kernel of `--guest-kernel`.
static GIVEN: OnceLock<Kernel> = OnceLock::new();

/// From now on guests boot this kernel. The first call counts; a program has one.
pub fn use_kernel(kernel: Kernel) {
    let _ = GIVEN.set(kernel);
}

impl Kernel {
    /// An image, with its modules from `lib/modules` beside the directory that it is in, or
    /// of this machine.
    ///
    /// # Errors
    /// [`KernelError`].
    pub fn open(image: &Path) -> Result<Kernel, KernelError> {
        let failed = |error| KernelError::Read { path: image.to_owned(), error };
        let file = std::fs::File::open(image).map_err(failed)?;
        let no_image = |got: String| KernelError::NoImage { path: image.to_owned(), got };
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() {
            return Err(no_image("no regular file".to_owned()));
        }
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

    /// The kernel with these modules loaded as well, and what they need.
    ///
    /// # Errors
    /// [`KernelError::NoModule`] where the kernel has modules, and one of these neither among
    /// them nor built in.
    pub(crate) fn and(&self, modules: &[&str]) -> Result<Kernel, KernelError> {
        let mut more = self.clone();
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

    /// The kernel that guests boot: the one given, else this machine's own, else the last of
    /// those in `/boot`.
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
        candidates.filter_map(|image| Kernel::open(&image).ok()).next().ok_or_else(|| {
            Unsupported::new(
                "no kernel image for guests (/boot/vmlinuz-*, with virtio)",
                "give one (--guest-kernel FILE), or apt install linux-image-cloud-amd64",
            )
        })
    }

    /// Path of the image.
    pub(crate) fn image(&self) -> &Path {
        &self.image
    }

    /// Files of modules, in the order of loading.
    pub(crate) fn modules(&self) -> &[PathBuf] {
        &self.modules
    }
}

/// Version of a bzImage by its boot header (`Documentation/arch/x86/boot.rst`), or what is
/// there instead.
fn version(head: &[u8]) -> Result<String, String> {
    if head.is_empty() {
        return Err("an empty file".to_owned());
    }
    if head.get(0x1fe..0x200) != Some(&[0x55, 0xaa]) || head.get(0x202..0x206) != Some(b"HdrS") {
        let first = head.iter().take(4).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>();
        return Err(format!("a file that begins with {}", first.join(" ")));
    }
    let at = head.get(0x20e..0x210).map_or(0, |at| usize::from(at[0]) | usize::from(at[1]) << 8);
    let text = head.get(at + 0x200..).unwrap_or_default();
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let version = String::from_utf8_lossy(text);
    // It becomes part of a path.
    let version = version.split_whitespace().next().filter(|v| at != 0 && !v.contains('/'));
    version.map(str::to_owned).ok_or_else(|| "an image without a version".to_owned())
}

/// Files of modules and of what they need, in the order of loading, without those that are
/// built in; or the name of one that is not there.
fn files_of(directory: &Path, modules: &[&str]) -> Result<Vec<PathBuf>, String> {
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap_or_default();
    let (built_in, dependencies) = (read("modules.builtin"), read("modules.dep"));
    let mut files = Vec::new();
    for &module in modules {
        if built_in.lines().any(|path| is_of(path, module)) {
            continue;
        }
        let line = dependencies
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(path, _)| is_of(path, module))
            .ok_or(module)?;
        // A module comes before those that it needs (depmod(8)).
        let ordered = line.1.split_whitespace().rev().chain([line.0]);
        for path in ordered.map(|path| directory.join(path)) {
            if !files.contains(&path) {
                files.push(path);
            }
        }
    }
    Ok(files)
}

/// Whether a path (`kernel/net/x.ko.xz`) is that of a module.
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
    fn an_image_tells_its_version_and_other_files_what_they_are() {
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
        // More of them: what is loaded already is not loaded again.
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
