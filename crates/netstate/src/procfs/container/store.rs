//! Files of container runtimes and of the kubelet that have the names of containers and pods.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Identity, Name, usual};

/// Limit of bytes of a file. The largest, with the environment of a container, have some 100 kB.
const MOST_BYTES: u64 = 4 << 20;
/// Limit of directory entries, far more than a node has pods.
const MOST_ENTRIES: usize = 20_000;

/// Bundles of containerd, with the namespaces of Kubernetes and nerdctl.
const CONTAINERD: [&str; 3] = [
    "run/containerd/io.containerd.runtime.v2.task/k8s.io",
    "run/containerd/io.containerd.runtime.v2.task/default",
    "run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io",
];
/// Directories of CRI-O's and Podman's containers.
const STORAGE: [&str; 2] =
    ["run/containers/storage/overlay-containers", "var/lib/containers/storage/overlay-containers"];
/// The kubelet's directory of logs, with a directory NAMESPACE_NAME_UID for each pod.
const POD_LOGS: &str = "var/log/pods";
/// Docker's directory of data, and the file that may name another.
const DOCKER: &str = "var/lib/docker";
const DOCKER_SETTINGS: &str = "etc/docker/daemon.json";
/// Keys of namespace and name of a pod, and of the name of a container without a pod.
const POD_KEYS: [(&str, &str); 2] = [
    ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name"),
    ("io.kubernetes.pod.namespace", "io.kubernetes.pod.name"),
];
const NERDCTL_NAME: &str = "nerdctl/name";
/// Digits of a network's ID in the name of its sandbox.
const NETWORK_DIGITS: usize = 10;

/// The names on one machine. Files are read when a name is asked for, and each answer is kept.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    docker: PathBuf,
    pods: OnceLock<BTreeMap<String, Name>>,
    podman: OnceLock<BTreeMap<String, Name>>,
    networks: OnceLock<BTreeMap<String, String>>,
    known: Mutex<BTreeMap<Identity, Name>>,
}

/// Labels of Docker, annotations of the OCI's specification.
type Labels = BTreeMap<String, String>;

/// Docker's `config.v2.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerContainer {
    name: Option<String>,
    config: Option<DockerConfig>,
    network_settings: Option<DockerNetworks>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerConfig {
    labels: Option<Labels>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerNetworks {
    networks: Option<BTreeMap<String, Option<DockerEndpoint>>>,
}

#[derive(Deserialize)]
struct DockerEndpoint {
    #[serde(rename = "NetworkID")]
    network_id: Option<String>,
}

/// `daemon.json`.
#[derive(Deserialize)]
struct DockerSettings {
    #[serde(rename = "data-root")]
    data_root: Option<String>,
}

/// `config.json` of a bundle.
#[derive(Deserialize)]
struct Bundle {
    annotations: Option<Labels>,
}

/// An element of Podman's `containers.json`.
#[derive(Deserialize)]
struct PodmanContainer {
    id: String,
    names: Option<Vec<String>>,
}

impl Store {
    /// The files of this machine.
    pub fn of_machine() -> &'static Store {
        static MACHINE: OnceLock<Store> = OnceLock::new();
        MACHINE.get_or_init(|| Store::below(Path::new("/")))
    }

    /// The files of a machine whose root directory is `root`.
    pub fn below(root: &Path) -> Store {
        let settings: Option<DockerSettings> = parse(&root.join(DOCKER_SETTINGS));
        let other = settings.and_then(|settings| settings.data_root);
        let docker = other.as_deref().and_then(|path| path.strip_prefix('/')).unwrap_or(DOCKER);
        Store {
            docker: root.join(docker),
            root: root.to_owned(),
            pods: OnceLock::new(),
            podman: OnceLock::new(),
            networks: OnceLock::new(),
            known: Mutex::default(),
        }
    }

    /// Returns the name of a container's pod, or of the container if it has none.
    pub fn name(&self, identity: &Identity) -> Option<Name> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = known().get(identity) {
            return Some(name.clone());
        }
        let name = self.find(identity)?;
        known().insert(identity.clone(), name.clone());
        Some(name)
    }

    fn find(&self, identity: &Identity) -> Option<Name> {
        let (id, pod) = match identity {
            // LXC has the name in the control group.
            Identity::Lxc { name } => return Some(Name::Container(name.clone())),
            Identity::Container { id, pod } => (id, pod),
        };
        let of_pod = || self.pods.get_or_init(|| self.pods()).get(pod.as_ref()?).cloned();
        let of_bundle = || {
            let files = CONTAINERD.map(|path| self.root.join(path).join(id).join("config.json"));
            let userdata = |path| self.root.join(path).join(id).join("userdata/config.json");
            files.into_iter().chain(STORAGE.map(userdata)).find_map(|file| {
                let bundle: Bundle = parse(&file)?;
                let annotations = bundle.annotations?;
                labelled(&annotations).or_else(|| {
                    let name = usual(annotations.get(NERDCTL_NAME)?)?;
                    Some(Name::Container(name))
                })
            })
        };
        let of_docker = || {
            let file = self.docker.join("containers").join(id).join("config.v2.json");
            let container: DockerContainer = parse(&file)?;
            let labels = container.config.and_then(|config| config.labels).unwrap_or_default();
            labelled(&labels).or_else(|| {
                let name = container.name?;
                Some(Name::Container(usual(name.strip_prefix('/').unwrap_or(&name))?))
            })
        };
        let of_podman = || self.podman.get_or_init(|| self.podman()).get(id).cloned();
        of_pod().or_else(of_bundle).or_else(of_docker).or_else(of_podman)
    }

    /// Returns the name of Docker's overlay network whose sandbox is mounted as `1-ID`.
    pub fn network(&self, sandbox: &str) -> Option<String> {
        let id = sandbox.strip_prefix("1-").filter(|id| id.len() == NETWORK_DIGITS)?;
        self.networks.get_or_init(|| self.networks()).get(id).cloned()
    }

    /// Lists pods by UID.
    fn pods(&self) -> BTreeMap<String, Name> {
        let pod = |entry: String| {
            // Neither namespaces nor names nor UIDs contain an underscore.
            let mut parts = entry.splitn(3, '_');
            let (namespace, name) = (usual(parts.next()?)?, usual(parts.next()?)?);
            Some((parts.next()?.to_owned(), Name::Pod { namespace, name }))
        };
        list(&self.root.join(POD_LOGS)).filter_map(pod).collect()
    }

    /// Lists Podman's containers by ID.
    fn podman(&self) -> BTreeMap<String, Name> {
        let file = self.root.join(STORAGE[1]).join("containers.json");
        let all: Vec<PodmanContainer> = parse(&file).unwrap_or_default();
        let named = |one: PodmanContainer| {
            let name = usual(one.names?.first()?)?;
            Some((one.id, Name::Container(name)))
        };
        all.into_iter().filter_map(named).collect()
    }

    /// Lists Docker's networks by the first digits of their ID, as far as a container uses them.
    fn networks(&self) -> BTreeMap<String, String> {
        let directory = self.docker.join("containers");
        let mut found = BTreeMap::new();
        for id in list(&directory) {
            let container = parse::<DockerContainer>(&directory.join(id).join("config.v2.json"));
            let settings = container.and_then(|container| container.network_settings);
            let networks = settings.and_then(|settings| settings.networks).unwrap_or_default();
            for (name, endpoint) in networks {
                let id = endpoint.and_then(|endpoint| endpoint.network_id).unwrap_or_default();
                if let (Some(name), Some(id)) = (usual(&name), id.get(..NETWORK_DIGITS)) {
                    found.insert(id.to_owned(), name);
                }
            }
        }
        found
    }
}

fn labelled(labels: &Labels) -> Option<Name> {
    POD_KEYS.iter().find_map(|(namespace, name)| {
        let (namespace, name) = (labels.get(*namespace)?, labels.get(*name)?);
        Some(Name::Pod { namespace: usual(namespace)?, name: usual(name)? })
    })
}

/// Parses a file; `None` if it cannot be read or has another form.
fn parse<T: DeserializeOwned>(path: &Path) -> Option<T> {
    // Opening a pipe would block, and a link could lead to any file.
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    // A device may have no end.
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn list(directory: &Path) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.take(MOST_ENTRIES).filter_map(|entry| entry.file_name().into_string().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: char) -> String {
        digit.to_string().repeat(64)
    }

    fn container(digit: char, pod: Option<&str>) -> Identity {
        Identity::Container { id: id(digit), pod: pod.map(str::to_owned) }
    }

    fn pod(namespace: &str, name: &str) -> Option<Name> {
        Some(Name::Pod { namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// Directories as the runtimes write them, shortened.
    fn recorded() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: String, text: String| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let docker =
            |digit: char| format!("var/lib/docker/containers/{}/config.v2.json", id(digit));
        write(
            docker('a'),
            r#"{"StreamConfig":{},"State":{"Running":true,"Pid":4711},"ID":"aaaa","Managed":false,
               "Config":{"Hostname":"web","Env":["PATH=/bin"],"Labels":{}},"Name":"/web",
               "NetworkSettings":{"Bridge":"","SandboxID":"9f","Networks":{"backend":{
                 "NetworkID":"mz3xk2v0q9s1ngypk2kv7u0qa","EndpointID":"e1"},"none":null}}}"#
                .to_owned(),
        );
        write(
            docker('b'),
            r#"{"Name":"/k8s_POD_dns","Config":{"Labels":{"io.kubernetes.pod.name":"dns-0",
               "io.kubernetes.pod.namespace":"kube-system"}},"NetworkSettings":{"Networks":null}}"#
                .to_owned(),
        );
        write(docker('c'), r#"{"Name":"/\u001b[31mred"}"#.to_owned());
        write(docker('d'), r#"{"Name":7}"#.to_owned());
        let task = "run/containerd/io.containerd.runtime.v2.task";
        write(
            format!("{task}/k8s.io/{}/config.json", id('e')),
            r#"{"ociVersion":"1.1.0","process":{"args":["/pause"]},"annotations":{
               "io.kubernetes.cri.container-type":"sandbox","io.kubernetes.cri.sandbox-name":"web-7d",
               "io.kubernetes.cri.sandbox-namespace":"shop"}}"#
                .to_owned(),
        );
        write(
            format!("{task}/default/{}/config.json", id('f')),
            r#"{"annotations":{"nerdctl/name":"db"}}"#.to_owned(),
        );
        write(
            format!("{}/{}/userdata/config.json", STORAGE[0], id('0')),
            r#"{"annotations":{"io.kubernetes.pod.name":"api","io.kubernetes.pod.namespace":"shop",
               "io.kubernetes.cri-o.ContainerType":"sandbox"}}"#
                .to_owned(),
        );
        let uid = "0b2e1a5c-7d43-4a8e-9c11-5f0d7b9e2a66";
        write(format!("{POD_LOGS}/shop_cart-1_{uid}/pause/0.log"), String::new());
        write(
            format!("{}/containers.json", STORAGE[1]),
            format!(r#"[{{"id":"{}","names":["pod-man"]}},{{"id":"x"}}]"#, id('1')),
        );
        root
    }

    #[test]
    fn each_runtime_s_files_have_the_names() {
        let root = recorded();
        let store = Store::below(root.path());
        let uid = "0b2e1a5c-7d43-4a8e-9c11-5f0d7b9e2a66";
        let named = |name: &str| Some(Name::Container(name.to_owned()));
        for (identity, expected) in [
            (container('a', None), named("web")),
            (container('b', None), pod("kube-system", "dns-0")),
            // A name that would colour a terminal, and a file of another form.
            (container('c', None), None),
            (container('d', None), None),
            (container('e', None), pod("shop", "web-7d")),
            (container('f', None), named("db")),
            (container('0', None), pod("shop", "api")),
            (container('1', None), named("pod-man")),
            // The kubelet's directory suffices.
            (container('9', Some(uid)), pod("shop", "cart-1")),
            (container('9', None), None),
            (Identity::Lxc { name: "c1".to_owned() }, named("c1")),
        ] {
            // The second answer is the kept one.
            assert_eq!(store.name(&identity), expected, "{identity:?}");
            assert_eq!(store.name(&identity), expected, "{identity:?}");
        }
        assert_eq!(store.network("1-mz3xk2v0q9").as_deref(), Some("backend"));
        for unknown in ["1-mz3xk2v0q8", "1-mz3", "backend", ""] {
            assert_eq!(store.network(unknown), None);
        }
        assert_eq!(pod("shop", "api").unwrap().to_string(), "shop/api");
    }

    #[test]
    fn only_plain_files_are_read() {
        let root = recorded();
        let config = root.path().join("var/lib/docker/containers").join(id('a'));
        let config = config.join("config.v2.json");
        let elsewhere = root.path().join("elsewhere");
        std::fs::rename(&config, &elsewhere).unwrap();
        let unnamed = || {
            let name = Store::below(root.path()).name(&container('a', None));
            std::fs::remove_file(&config).unwrap();
            name.is_none()
        };
        std::os::unix::fs::symlink(&elsewhere, &config).unwrap();
        assert!(unnamed());
        // The pipe has no writer, so opening it would block.
        nix::unistd::mkfifo(&config, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(unnamed());
    }

    #[test]
    fn docker_s_directory_may_be_elsewhere() {
        let root = recorded();
        std::fs::create_dir_all(root.path().join("etc/docker")).unwrap();
        let settings = r#"{"data-root":"/srv/docker","debug":true}"#;
        std::fs::write(root.path().join(DOCKER_SETTINGS), settings).unwrap();
        std::fs::create_dir_all(root.path().join("srv")).unwrap();
        std::fs::rename(root.path().join(DOCKER), root.path().join("srv/docker")).unwrap();
        let name = Store::below(root.path()).name(&container('a', None));
        assert_eq!(name, Some(Name::Container("web".to_owned())));
    }

    #[test]
    fn a_machine_without_runtimes_has_no_names() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::below(root.path());
        assert_eq!(store.name(&container('a', Some("u"))), None);
        assert_eq!(store.network("1-mz3xk2v0q9"), None);
    }
}
