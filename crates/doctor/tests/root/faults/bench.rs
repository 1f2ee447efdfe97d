//! A lab network with a fault, read and diagnosed.

use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use doctor::{Diagnosis, Host, Scope, Severity, collect, diagnose};
use lab::{Network, Params};
use test_support::bound;
use testbed::Offload;

/// A fault that can be made.
pub struct Fault {
    /// The check that must find it.
    pub code: &'static str,
    /// Mode of the lab in which it is made.
    pub mode: &'static str,
    /// How the fault is made: before the reading, by traffic during it, or in the data read.
    pub how: How,
}

pub enum How {
    /// A setting made before the host is read.
    Set(fn(&Network)),
    /// Traffic that continues while the host is read.
    Traffic(fn(&Network, &AtomicBool)),
    /// A setting, then traffic.
    Both(fn(&Network), fn(&Network, &AtomicBool)),
    /// Written into the data read, because this machine cannot have the fault.
    Written(fn(&mut Host)),
}

/// Traffic must increment counters within this time.
const INTERVAL: Duration = Duration::from_millis(200);

pub fn build(mode: &str, mtu: u32) -> Network {
    let mode = lab::find(mode).unwrap();
    let network = mode.build(&Params::new(mtu, Offload::Full)).unwrap();
    reach(&network);
    network
}

/// Sends a datagram from client to server, so that the path is learned.
fn reach(network: &Network) {
    let server = network
        .server()
        .netns()
        .run(|| {
            let socket = bound(|| UdpSocket::bind(network.address.listen));
            socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            socket
        })
        .unwrap();
    let client = network.client().netns().run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    let arrived = (0..500).any(|_| {
        let _ = client.send_to(b"overlay", network.address.target);
        server.recv(&mut [0; 16]).is_ok()
    });
    assert!(arrived, "the network carries nothing");
}

/// Reads the network's hosts only, and replaces the machine's state, which other programs affect,
/// by that of an idle one.
pub fn read(network: &Network, traffic: Option<fn(&Network, &AtomicBool)>) -> Host {
    let hosts = network
        .hosts()
        .iter()
        .map(|host| (host.name().to_owned(), host.netns().try_clone().unwrap()));
    let scope = Scope::Some(hosts.collect());
    let end = AtomicBool::new(false);
    let mut host = std::thread::scope(|threads| {
        let end = &end;
        if let Some(traffic) = traffic {
            threads.spawn(move || traffic(network, end));
        }
        let host = collect(scope, INTERVAL).unwrap();
        end.store(true, Ordering::Relaxed);
        host
    });
    at_rest(&mut host);
    host
}

/// Replaces the machine's state by that of an idle machine.
pub fn at_rest(host: &mut Host) {
    let machine = &mut host.machine;
    if let doctor::host::Reading::Read(pair) = &mut machine.softnet {
        pair.after = pair.before.clone();
    }
    if let doctor::host::Reading::Read(pair) = &mut machine.cpu {
        pair.after = pair.before.clone();
    }
    if let doctor::host::Reading::Read(pair) = &mut machine.arp {
        pair.before.entries = 3;
        pair.after = pair.before;
    }
    machine.kernel_openvswitch = false;
    machine.kernel_vhost_net = false;
    let backlog = doctor::host::Reading::Read("1000".to_owned());
    machine.sysctls.insert("net/core/netdev_max_backlog".to_owned(), backlog);
}

impl Fault {
    /// Makes the fault on a network of its own, and reads the network.
    pub fn host(&self) -> Host {
        let network = build(self.mode, if self.code == "OV017" { 9000 } else { 1500 });
        match self.how {
            How::Set(set) => {
                set(&network);
                read(&network, None)
            }
            How::Traffic(traffic) => read(&network, Some(traffic)),
            How::Both(set, traffic) => {
                set(&network);
                read(&network, Some(traffic))
            }
            How::Written(write) => {
                let mut host = read(&network, None);
                write(&mut host);
                host
            }
        }
    }
}

/// Names the directory in which every host is saved, without its addresses, as the library for
/// `tests/hosts.rs`.
const SAVE: &str = "OVERLANE_SAVE_HOSTS";

/// Diagnoses a host; saves it under a name on request.
pub fn judge(name: &str, host: &Host) -> Diagnosis {
    if let Some(directory) = std::env::var_os(SAVE) {
        let path = Path::new(&directory).join(format!("{name}.tar.zst"));
        let file = std::fs::File::create(path).unwrap();
        doctor::dump::write(&doctor::scrub::scrub(host).unwrap(), file).unwrap();
    }
    diagnose(host)
}

/// Findings at a severity or above, except for a code.
pub fn others(diagnosis: &Diagnosis, code: &str, least: Severity) -> Vec<String> {
    let findings = diagnosis.findings.iter();
    findings
        .filter(|finding| finding.severity >= least && finding.code != code)
        .map(|finding| {
            let evidence: Vec<&str> =
                finding.evidence.iter().map(|evidence| evidence.what.as_str()).collect();
            format!("{} {} {} {evidence:?}", finding.code, finding.namespace, finding.object)
        })
        .collect()
}
