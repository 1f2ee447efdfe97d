//! Containers and pods, by the control group of their first process: the identity is in the path of
//! the group, the name in the runtime's files.
//!
//! Tenants choose the names, and a user may create groups below `user.slice`. Groups there are
//! ignored, and so are names with unusual characters.

mod store;

use serde::{Deserialize, Serialize};

pub use store::Store;

/// Hexadecimal digits of a container's ID.
const ID_DIGITS: usize = 64;
/// Longest name; Kubernetes allows 253 bytes.
const MOST_NAME: usize = 253;
/// Monitors of containers, which are not in their namespaces.
const MONITOR: &str = "conmon";

/// Identity of a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// A container of Docker, containerd, CRI-O or Podman.
    Container {
        /// 64 hexadecimal digits.
        id: String,
        /// UID of its pod, as Kubernetes writes it.
        pod: Option<String>,
    },
    /// A system container of LXC or Incus.
    Lxc {
        /// Its name.
        name: String,
    },
}

/// Name of a container or pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Name {
    /// A pod of Kubernetes: its namespace and name.
    Pod {
        /// Namespace of Kubernetes.
        namespace: String,
        /// Name of the pod.
        name: String,
    },
    /// A container without a pod.
    Container(String),
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Name::Pod { namespace, name } => write!(f, "{namespace}/{name}"),
            Name::Container(name) => f.write_str(name),
        }
    }
}

impl Identity {
    /// Finds the container in the content of `/proc/PID/cgroup`; `None`: it names none.
    pub fn of_groups(groups: &str) -> Option<Identity> {
        // hierarchy-ID:controllers:path. All hierarchies name the same container.
        groups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).find_map(Identity::of_path)
    }

    fn of_path(path: &str) -> Option<Identity> {
        // Users create groups there.
        if path.split('/').any(|part| part == "user.slice") {
            return None;
        }
        let parts = || path.split('/').rev();
        // The innermost container: nodes of kind are containers themselves.
        if let Some((at, id)) = parts().enumerate().find_map(|(at, part)| Some((at, id(part)?))) {
            // The pod's group is the group of the container or the next one above it.
            let pod = parts().skip(at).take(2).find_map(pod_uid);
            return Some(Identity::Container { id, pod });
        }
        let name = parts().find_map(|part| part.strip_prefix("lxc.payload."));
        Some(Identity::Lxc { name: usual(name?)? })
    }
}

/// Returns the ID in the name of a group: `ID`, `docker-ID.scope`, `cri-containerd-ID.scope`,
/// `kubepods-….slice:cri-containerd:ID`.
fn id(group: &str) -> Option<String> {
    let group = group.strip_suffix(".scope").unwrap_or(group);
    let digits = group.bytes().rev().take_while(|byte| is_hexadecimal(*byte)).count();
    // The group is no container's, or that of a helper of the runtime.
    if digits != ID_DIGITS || group.contains(MONITOR) {
        return None;
    }
    Some(group[group.len() - ID_DIGITS..].to_owned())
}

/// Returns the UID in `podUID` or `kubepods-burstable-podUID.slice`, where systemd's driver writes
/// underscores. A static pod has 32 digits without dashes.
fn pod_uid(group: &str) -> Option<String> {
    let (_, rest) = group.rsplit_once("pod")?;
    let is_of_uid = |byte: &u8| is_hexadecimal(*byte) || matches!(byte, b'-' | b'_');
    let length = rest.bytes().take_while(is_of_uid).count();
    matches!(length, 32 | 36).then(|| rest[..length].replace('_', "-"))
}

fn is_hexadecimal(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

/// Returns a name if it has the form that runtimes and Kubernetes demand.
fn usual(name: &str) -> Option<String> {
    let is_usual = name.len() <= MOST_NAME
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    is_usual.then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "4f1d0c3be9aa77e64c9f5f8a4a2f9f1b0d6a2f5e1c3b5a79e0d1c2b3a4958677";

    /// Groups as the runtimes name them, recorded on hosts with each driver and version.
    #[test]
    fn containers_are_found_in_the_groups_of_each_runtime() {
        let uid = "0b2e1a5c-7d43-4a8e-9c11-5f0d7b9e2a66";
        let systemd = uid.replace('-', "_");
        let container = |pod: Option<&str>| {
            Some(Identity::Container { id: ID.to_owned(), pod: pod.map(str::to_owned) })
        };
        let lxc = |name: &str| Some(Identity::Lxc { name: name.to_owned() });
        for (groups, expected) in [
            (format!("0::/system.slice/docker-{ID}.scope\n"), container(None)),
            (format!("12:pids:/docker/{ID}\n1:cpu:/docker/{ID}\n"), container(None)),
            (format!("0::/docker/{ID}/init.scope\n"), container(None)),
            (
                format!(
                    "0::/kubepods.slice/kubepods-burstable.slice/\
                     kubepods-burstable-pod{systemd}.slice/cri-containerd-{ID}.scope\n"
                ),
                container(Some(uid)),
            ),
            (
                format!("0::/kubepods.slice/kubepods-pod{systemd}.slice/crio-{ID}.scope\n"),
                container(Some(uid)),
            ),
            (format!("4:cpu:/kubepods/besteffort/pod{uid}/{ID}\n"), container(Some(uid))),
            (
                format!(
                    "1:cpu:/system.slice/containerd.service/\
                     kubepods-besteffort-pod{systemd}.slice:cri-containerd:{ID}\n"
                ),
                container(Some(uid)),
            ),
            (
                format!("0::/kubepods/pod0123456789abcdef0123456789abcdef/{ID}\n"),
                container(Some("0123456789abcdef0123456789abcdef")),
            ),
            (format!("0::/machine.slice/libpod-{ID}.scope/container\n"), container(None)),
            (format!("0::/machine.slice/libpod-conmon-{ID}.scope\n"), None),
            ("0::/lxc.payload.web1/init.scope\n".to_owned(), lxc("web1")),
            ("0::/lxc.monitor.web1\n".to_owned(), None),
            ("0::/init.scope\n".to_owned(), None),
            ("0::/system.slice/ssh.service\n".to_owned(), None),
            // A user's own group is no container.
            (format!("0::/user.slice/user-1000.slice/docker-{ID}.scope\n"), None),
            (format!("0::/docker/{}\n", &ID[1..]), None),
            (format!("0::/docker/f{ID}\n"), None),
            (String::new(), None),
        ] {
            assert_eq!(Identity::of_groups(&groups), expected, "{groups}");
        }
    }

    #[test]
    fn a_container_in_a_container_is_the_inner_one() {
        let groups = format!("0::/docker/{}/kubelet/kubepods/pod{}/{ID}\n", "a".repeat(64), "b");
        let expected = Identity::Container { id: ID.to_owned(), pod: None };
        assert_eq!(Identity::of_groups(&groups), Some(expected));
    }

    #[test]
    fn only_usual_names_are_names() {
        for name in ["web", "web_1", "0.a-b", "a"] {
            assert_eq!(usual(name).as_deref(), Some(name));
        }
        for name in ["", "-a", ".", "../a", "a/b", "a b", "a\u{1b}[31m", "ä", &"a".repeat(254)] {
            assert_eq!(usual(name), None, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn any_groups_are_read(groups in "(([0-9]{0,2}:?){0,2}[a-z:/._0-9-]{0,90}\n){0,4}") {
            match Identity::of_groups(&groups) {
                Some(Identity::Container { id, .. }) => prop_assert_eq!(id.len(), ID_DIGITS),
                Some(Identity::Lxc { name }) => prop_assert!(usual(&name).is_some()),
                None => {}
            }
        }
    }
}
