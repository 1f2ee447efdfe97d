//! Foreign text through each verb that prints it must not change lines around it on standard output
//! and standard error. Oversized files must not make the program use much memory.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};
use test_support::{need, require};

use crate::example;

/// Colour, cursor, title, C1, DEL, directional marks, invisible characters, line ends.
const EVIL: &str =
    "=x\x1b[35m\x1b[2J\x1b]0;t\x07\u{9b}31m\u{7f}\u{8}\u{202e}\u{2066}\u{200b}\u{feff}\u{2028}|`y";

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

fn overlane<S: AsRef<OsStr>>(arguments: &[S]) -> Said {
    said(Command::new(env!("CARGO_BIN_EXE_overlane")).args(arguments))
}

fn said(command: &mut Command) -> Said {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text is UTF-8");
    Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

impl Said {
    /// Asserts that the output has text, and that none of it changes the text around it.
    #[track_caller]
    fn harmless(self, code: i32) -> Said {
        for text in [&self.out, &self.err] {
            let text = text.replace("\r\n", "\n");
            let left = text.chars().find(|c| foreign::is_harmful(*c) && !"\n\t".contains(*c));
            assert_eq!(left, None, "{text:?}");
            assert!(!text.contains("panicked"), "{text}");
        }
        assert_eq!(self.code, Some(code), "{} {}", self.out, self.err);
        self
    }

    /// As above, and asserts that the escaped words are shown.
    #[track_caller]
    fn shown(self, code: i32) -> Said {
        let said = self.harmless(code);
        let all = format!("{}{}", said.out, said.err);
        // Plain, in JSON, in Markdown.
        let shown = ["\\x1b[35m", "\\u001b[35m", "\\\\x1b\\[35m"];
        assert!(shown.iter().any(|shown| all.contains(shown)), "{all}");
        said
    }
}

/// A results file whose free texts are all hostile.
fn results(directory: &Path, name: &str) -> PathBuf {
    let mut results = example::results();
    let evil = || EVIL.to_owned();
    results.overlane = evil();
    results.machine.cpu_model = evil();
    results.machine.kernel = evil();
    results.machine.os = evil();
    results.machine.hypervisor = Some(evil());
    results.plan.name = Some(evil());
    results.plan.vary = vec![evil()];
    results.warnings.push(evil());
    let was = std::mem::replace(&mut results.plan.baseline, evil());
    for mode in &mut results.modes {
        mode.reason = mode.reason.as_ref().map(|_| evil());
        mode.remedy = Some(evil());
        mode.notes.push(evil());
        if mode.mode == was {
            mode.mode = evil();
        }
    }
    for device in results.testbeds.iter_mut().flat_map(|one| &mut one.devices) {
        device.device = evil();
        device.features.insert(evil(), true);
    }
    for cell in &mut results.cells {
        // The largest allowed value.
        cell.message_bytes = cell.message_bytes.min(65_507);
        if cell.mode == was {
            cell.mode = evil();
        }
        cell.reason = cell.reason.as_ref().map(|_| evil());
        cell.trend = Some(evil());
        for hop in &mut cell.hops {
            hop.device = evil();
            hop.host = evil();
        }
        for sample in &mut cell.samples {
            sample.udp_errors.insert(evil(), 1);
            sample.invalid_reason = sample.invalid_reason.as_ref().map(|_| evil());
            for hop in &mut sample.hops {
                hop.device = evil();
            }
        }
    }
    let path = directory.join(name);
    std::fs::write(&path, serde_json::to_vec(&results).unwrap()).unwrap();
    path
}

#[test]
fn reports_of_a_hostile_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = results(directory.path(), "r.json");
    let other = results(directory.path(), "s.json");
    let (file, other) = (file.as_os_str(), other.as_os_str());
    let report = OsStr::new("report");
    for format in ["--markdown", "--csv", "--json"] {
        overlane(&[report, file, OsStr::new(format)]).shown(0);
    }
    overlane(&[report, file]).shown(0);
    overlane(&[report, OsStr::new("compare"), file, other]).shown(0);
    let page = directory.path().join("page.html");
    let charts = directory.path().join("charts");
    let to = [
        report,
        file,
        OsStr::new("--html"),
        page.as_os_str(),
        OsStr::new("--svg"),
        charts.as_os_str(),
    ];
    overlane(&to).harmless(0);
    let drawn = std::fs::read_dir(&charts).unwrap().map(|entry| entry.unwrap().path());
    for page in drawn.chain([page]) {
        let text = std::fs::read_to_string(page).unwrap();
        assert!(!text.chars().any(|c| foreign::is_harmful(c) && c != '\n'), "{text:?}");
    }
    // JSON has the same value.
    let said = overlane(&[report, file, OsStr::new("--json")]);
    let read: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&said.out).unwrap(), read);
}

#[test]
fn problem_of_a_hostile_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(format!("{}.json", EVIL.replace('/', "")));
    let name = path.as_os_str();
    overlane(&[OsStr::new("report"), name]).shown(2);
    overlane(&[OsStr::new("doctor"), OsStr::new("--from"), name]).shown(2);
    let mut value = serde_json::to_value(example::results()).unwrap();
    value[EVIL] = json!(1);
    std::fs::write(&path, value.to_string()).unwrap();
    overlane(&[OsStr::new("report"), name]).shown(2);
    for text in [json!({"schema": EVIL}).to_string(), EVIL.to_owned(), format!("{{\"{EVIL}\"")] {
        std::fs::write(&path, text).unwrap();
        // Some errors do not quote the input.
        overlane(&[OsStr::new("report"), name]).harmless(2);
        overlane(&[OsStr::new("report"), OsStr::new("compare"), name, name]).harmless(2);
        overlane(&[OsStr::new("doctor"), OsStr::new("--from"), name]).harmless(2);
        overlane(&[OsStr::new("vtep"), OsStr::new("--config"), name]).harmless(2);
    }
    // A name that is not UTF-8.
    let name = OsStr::from_bytes(b"/nowhere/\xff\x1b[35m");
    overlane(&[OsStr::new("report"), name]).harmless(2);
}

/// A saved host with hostile names.
fn host() -> doctor::Host {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../doctor/tests/hosts/OV013-vxlan.tar.zst");
    let mut host = doctor::dump::read(std::fs::File::open(path).unwrap()).unwrap();
    host.left_out.push(doctor::host::LeftOut { object: EVIL.into(), reason: EVIL.into() });
    for namespace in &mut host.namespaces {
        namespace.label = format!("{}{EVIL}", namespace.label);
        namespace.path = Some(format!("/run/netns/{EVIL}"));
        namespace.snmp = doctor::host::Reading::Unread(EVIL.into());
        for holder in &mut namespace.holders {
            holder.command = EVIL.into();
        }
        if let doctor::host::Reading::Read(links) = &mut namespace.interfaces {
            for link in links {
                link.name = format!("{}{EVIL}", link.name);
                link.kind = link.kind.clone();
            }
        }
    }
    host
}

#[test]
fn doctor_on_a_hostile_dump() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("host.tar.zst");
    let mut bytes = Vec::new();
    doctor::dump::write(&host(), &mut bytes).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let from = [OsStr::new("doctor"), OsStr::new("--from"), path.as_os_str()];
    overlane(&from).shown(10);
    overlane(&[&from[..], &[OsStr::new("--json")]].concat()).shown(10);
}

/// Name of a network namespace, which is deleted on drop.
struct Netns(String);

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[test]
fn doctor_in_a_namespace_with_unusual_names() {
    require!(need::root(), need::tool("ip"));
    // The kernel refuses blanks, slashes, colons and 0xa0 in device names.
    let netns = Netns(format!("ov{}\x1b[35m\u{202e}", std::process::id()));
    let ip = |arguments: &[&str]| {
        let done = said(Command::new("ip").args(arguments));
        assert_eq!(done.code, Some(0), "ip {arguments:?}: {}", done.err);
    };
    ip(&["netns", "add", &netns.0]);
    let (left, right) = ("\x1b[35ml", "\x1b[2J\u{202e}r");
    ip(&["-n", &netns.0, "link", "add", left, "type", "veth", "peer", "name", right]);
    ip(&["-n", &netns.0, "link", "set", left, "mtu", "1400", "up", "alias", EVIL]);
    ip(&["-n", &netns.0, "link", "set", right, "up"]);
    let at = ["doctor", "--netns", &netns.0, "--watch", "0.1"];
    let text = overlane(&at).shown(10);
    assert!(text.out.contains("OV015"), "{}", text.out);
    overlane(&[&at[..], &["--json"]].concat()).shown(10);
    // The machine's own journal stays as it is.
    let journal = tempfile::tempdir().unwrap();
    let journal = journal.path().join("journal");
    let fix = ["doctor", "fix", "OV015", "--journal", journal.to_str().unwrap(), "--netns"];
    overlane(&[&fix[..], &[&netns.0]].concat()).harmless(2);
    overlane(&["doctor", "--netns", &format!("{}x", netns.0)]).shown(2);
    // Log lines quote the input.
    let mut command = Command::new(env!("CARGO_BIN_EXE_overlane"));
    said(command.args(at).env("OVERLANE_LOG", "trace")).harmless(10);
}

#[test]
fn measuring_against_a_server_that_answers_with_escapes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let _ = client.write_all(format!("{EVIL}\r\n{EVIL}\r\n").repeat(100).as_bytes());
        let _ = client.shutdown(std::net::Shutdown::Write);
        let _ = client.read_to_end(&mut Vec::new());
    });
    let said = overlane(&["measure", "run", &address, "--duration", "1"]);
    let code = said.code.unwrap();
    assert!([1, 2].contains(&code), "{} {}", said.out, said.err);
    said.harmless(code);
    if !server.is_finished() {
        // The program may have refused its arguments before it connected.
        let _ = std::net::TcpStream::connect(&address);
    }
    server.join().unwrap();
}

/// Peak memory of this process's children.
fn peak_mib() -> i64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss() / 1024
}

/// Earlier, 12 KB made the program use 834 MB, and a tar name of 10 KB 447 MB.
#[test]
fn small_files_take_little_memory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("host.tar.zst");
    let header = |kind: tar::EntryType, name: &str, size: u64| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_path(name).unwrap();
        header.set_size(size);
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    for (kind, name) in [(tar::EntryType::Regular, "host.json"), (tar::EntryType::GNULongName, "x")]
    {
        let size = 400 << 20;
        let mut packed = zstd::Encoder::new(std::fs::File::create(&path).unwrap(), 3).unwrap();
        packed.write_all(&header(kind, name, size)).unwrap();
        std::io::copy(&mut std::io::repeat(b' ').take(size), &mut packed).unwrap();
        packed.finish().unwrap();
        assert!(path.metadata().unwrap().len() < 100_000);
        let said =
            overlane(&[OsStr::new("doctor"), OsStr::new("--from"), path.as_os_str()]).harmless(2);
        assert!(
            said.err.contains("419430400") && said.err.contains("host.tar.zst"),
            "{}",
            said.err
        );
    }
    assert!(peak_mib() < 200, "{} MiB", peak_mib());
}
