//! Runs the guard around shells that leave one object each.
//!
//! Each guard runs in its own network and mount namespaces with its own `/run`, and treats these as
//! the machine's. BPF objects and control groups belong to the whole machine, so a guard may also
//! list those of concurrent tests.

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use test_support::{need, require};

const GUARD: &str = env!("CARGO_BIN_EXE_test-guard");
/// Set for the test that acts as a program which loads a BPF program.
const LOADS: &str = "OVERLANE_GUARD_TEST_LOADS";

/// Runs a command in its own namespaces; `$G` is the guard.
fn isolated(place: &Path, script: &str) -> Command {
    let mut command = Command::new("unshare");
    let script = format!("mount -t tmpfs tmpfs /run && {script}");
    command.args(["--net", "--mount", "sh", "-c", &script]);
    // Variables of the outer guard and of the test itself.
    for name in ["OVERLANE_TEST", "OVERLANE_TEST_RUN", "NEXTEST_BINARY_ID", "NEXTEST_TEST_NAME"] {
        command.env_remove(name);
    }
    command.env("G", GUARD).env("TMPDIR", place).env("OVERLANE_TEST_LOCKS", place.join("locks"));
    command
}

/// Status and standard error stream.
#[track_caller]
fn output(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

fn guarded(script: &str) -> (Option<i32>, String) {
    let place = tempfile::tempdir().unwrap();
    let result = output(isolated(place.path(), "exec \"$G\" sh -c \"$0\"").arg(script));
    let left: Vec<_> = std::fs::read_dir(place.path()).unwrap().flatten().collect();
    assert!(left.iter().all(|entry| entry.file_name() == "locks"), "{left:?}");
    result
}

#[track_caller]
fn leaves(script: &str, object: &str) {
    let (status, said) = guarded(script);
    assert_eq!(status, Some(101), "{said}");
    assert!(said.contains("left behind by sh") && said.contains(object), "{object}: {said}");
}

/// Objects that a guard listed and that no other test of the machine can have created.
fn own(said: &str) -> Vec<&str> {
    let listed =
        said.lines().filter_map(|line| line.strip_prefix("left behind by ")?.split_once(": "));
    let objects = listed.flat_map(|(_, objects)| objects.split("; "));
    objects.filter(|it| !it.starts_with("BPF ") && !it.starts_with("cgroup ")).collect()
}

fn runs(argument: &str) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.any(|line| line.split(|byte| *byte == 0).any(|it| it == argument.as_bytes()))
}

#[test]
fn a_test_that_leaves_nothing_passes_and_one_that_fails_keeps_its_status() {
    require!(need::root());
    // Objects that it makes and removes, and a process that ends a moment later, are fine.
    let (_, said) = guarded("touch $TMPDIR/a; rm $TMPDIR/a; (setsid sleep 0.3 &)");
    assert_eq!(own(&said), Vec::<&str>::new());
    let (status, said) = guarded("touch $TMPDIR/kept; exit 7");
    assert_eq!(status, Some(7));
    assert!(said.contains("/kept"), "{said}");
    let (status, _) = guarded("kill -ABRT $$");
    assert_eq!(status, Some(128 + 6));
}

#[test]
fn a_process_that_was_forked_twice_is_listed_and_killed() {
    require!(need::root());
    leaves("(setsid sleep 1234.1 &) &", "\"sleep 1234.1\"");
    assert!(!runs("1234.1"));
    // A process without the guard's mark in its environment.
    leaves("(setsid env -i sleep 1234.2 &) &", "\"sleep 1234.2\"");
    assert!(!runs("1234.2"));
}

#[test]
fn a_name_of_a_namespace_is_listed() {
    require!(need::root(), need::tool("ip"));
    let (status, said) = guarded("ip netns add guard-test");
    assert_eq!(status, Some(101), "{said}");
    assert_eq!(own(&said), ["namespace /run/netns/guard-test"]);
}

#[test]
fn files_links_mounts_and_groups_are_listed() {
    require!(need::root(), need::tool("ip"), need::device("veth"));
    leaves("touch \"$TMPDIR/a file\"", "/a file");
    leaves("mkdir -p /run/overlane/a; echo >/run/overlane/a/b", "file /run/overlane/a/b");
    leaves("ip link add guard0 type veth peer name guard1", " guard0");
    leaves("mkdir /run/m; mount -t tmpfs tmpfs /run/m", " /run/m");
    // A mount in its directory is not emptied.
    let kept = tempfile::tempdir().unwrap();
    std::fs::write(kept.path().join("kept"), "").unwrap();
    let place = tempfile::tempdir().unwrap();
    let script = "mkdir $TMPDIR/m; mount --bind \"$KEPT\" $TMPDIR/m";
    let mut command = isolated(place.path(), "exec \"$G\" sh -c \"$0\"");
    let (status, said) = output(command.arg(script).env("KEPT", kept.path()));
    assert_eq!(status, Some(101), "{said}");
    assert!(kept.path().join("kept").exists());
}

/// Loads a BPF program, pins it if there is a path for that, and stays otherwise.
fn load(object: &str) {
    let object = libbpf_rs::ObjectBuilder::default().open_file(object).unwrap();
    let object = object.load().unwrap();
    let mut program = object.progs_mut().next().unwrap();
    if let Some(place) = std::env::var_os("PIN") {
        program.pin(Path::new(&place)).unwrap();
    } else {
        std::thread::sleep(Duration::from_secs(60));
    }
}

#[test]
fn bpf_programs_are_listed() {
    if let Ok(object) = std::env::var(LOADS) {
        return load(&object);
    }
    require!(need::root(), need::tool("clang"));
    let place = tempfile::tempdir().unwrap();
    let object = place.path().join("program.o");
    let source = "__attribute__((section(\"socket\"))) int guard_test(void *c) { return 0; }\
                  char _license[] __attribute__((section(\"license\"))) = \"GPL\";";
    let compile = "printf %s \"$0\" | clang -target bpf -O2 -g -x c -c - -o \"$1\"";
    let status = Command::new("sh").args(["-c", compile, source]).arg(&object).status();
    assert!(status.unwrap().success());

    let this = std::env::current_exe().unwrap();
    let loads = "\"$THIS\" --exact bpf_programs_are_listed --nocapture";
    let cases = [
        (format!("(setsid {loads} >/dev/null &) &"), "process "),
        (format!("PIN=/sys/fs/bpf/guard-test {loads}"), "pinned BPF object /sys/fs/bpf/guard-test"),
    ];
    for (script, object_too) in cases {
        let mut command =
            isolated(place.path(), "mount -t bpf bpf /sys/fs/bpf && exec \"$G\" sh -c \"$0\"");
        let command = command.arg(script).env("THIS", &this).env(LOADS, &object);
        let (status, said) = output(command);
        assert_eq!(status, Some(101), "{said}");
        assert!(said.contains("BPF program ") && said.contains(" guard_test"), "{said}");
        assert!(said.contains(object_too), "{said}");
    }
}

#[test]
fn a_signal_ends_the_test_and_its_descendants() {
    require!(need::root());
    let place = tempfile::tempdir().unwrap();
    // The second process ignores it, and so does the test.
    let script = "trap '' TERM; setsid sleep 1234.3 & touch \"$READY\"; sleep 1234.4";
    let ready = place.path().join("ready");
    let mut command = isolated(place.path(), "exec \"$G\" sh -c \"$0\"");
    let command = command.arg(script).env("READY", &ready).stderr(Stdio::null());
    let mut guard = command.spawn().unwrap();
    let begun = Instant::now();
    while !(ready.exists() && runs("1234.3") && runs("1234.4")) {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = guard.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let status = guard.wait().unwrap();
    assert_eq!(status.code(), Some(128 + 9));
    assert!(!runs("1234.3") && !runs("1234.4"));
}

/// Two concurrent guards, of the tests `one` and `two`, and the end of the run. In the scripts,
/// `until_there FILE` waits for a file in the directory `$FLAGS`.
fn two_at_once(one: &str, two: &str) -> (Option<i32>, String) {
    let place = tempfile::tempdir().unwrap();
    let script = r#"
        export OVERLANE_TEST_RUN=$TMPDIR/run FLAGS=$TMPDIR
        until_there='until_there() { until [ -e "$FLAGS/$1" ]; do sleep 0.01; done; }'
        export NEXTEST_TEST_NAME=test
        "$G" --begin "$OVERLANE_TEST_RUN"
        {
            NEXTEST_BINARY_ID=one "$G" sh -c "$until_there; $0"
            echo "one: $?"
            touch "$FLAGS/one-ended"
        } >&2 &
        NEXTEST_BINARY_ID=two "$G" sh -c "$until_there; $1"
        echo "two: $?" >&2
        wait
        exec "$G" --finish "$OVERLANE_TEST_RUN""#;
    output(isolated(place.path(), script).args([one, two]))
}

#[test]
fn leftovers_of_concurrent_tests_are_judged_at_the_end() {
    require!(need::root(), need::tool("ip"));
    let (status, said) = two_at_once(
        "until_there two-runs; ip netns add left",
        "touch $FLAGS/two-runs; until_there one-ended",
    );
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("one: 0") && said.contains("two: 0"), "{said}");
    let line = "left behind: namespace /run/netns/left: one of the tests one test, two test";
    assert!(said.contains(line), "{said}");
}

#[test]
fn objects_older_than_a_test_are_not_blamed_on_it() {
    require!(need::root(), need::tool("ip"));
    // The third guard begins after the name was added, and while the first one runs.
    let third = "NEXTEST_BINARY_ID=three \"$G\" true";
    let (status, said) =
        two_at_once(&format!("ip netns add left; {third}"), "until_there one-ended");
    assert_eq!(status, Some(1), "{said}");
    let line = said.lines().find(|line| line.contains("namespace /run/netns/left: "));
    assert!(line.is_some_and(|line| line.contains("one test")), "{said}");
    assert!(!said.contains("three"), "{said}");
}

#[test]
fn only_the_right_one_of_two_concurrent_tests_is_blamed_for_a_process() {
    require!(need::root(), need::tool("ip"));
    let (status, said) = two_at_once(
        "until_there two-runs; setsid sleep 1234.5 &",
        "touch $FLAGS/two-runs; ip netns add own; until_there one-ended; ip netns del own",
    );
    assert!(said.contains("one: 101") && said.contains("two: 0"), "{said}");
    assert!(said.contains("left behind by one test: "), "{said}");
    assert!(said.contains("\"sleep 1234.5\""), "{said}");
    // An object that the other one removed is fine.
    assert!(!said.contains("/run/netns/own: "), "{said}");
    // Other tests of the machine may have loaded BPF programs.
    let others = |line: &str| line.starts_with("left behind: BPF ") || line.contains(": cgroup ");
    assert!(status == Some(0) || said.lines().any(others), "{said}");
}

#[test]
fn the_end_of_a_run_removes_what_a_killed_guard_left() {
    require!(need::root());
    let place = tempfile::tempdir().unwrap();
    let script = r#"
        export OVERLANE_TEST_RUN=$TMPDIR/run
        "$G" --begin "$OVERLANE_TEST_RUN"
        mkdir "$TMPDIR/guards"
        TMPDIR=$TMPDIR/guards "$G" sh -c 'setsid sleep 1234.6 & kill -KILL $PPID; wait' >&2
        "$G" --finish "$OVERLANE_TEST_RUN""#;
    let (status, said) = output(&mut isolated(place.path(), script));
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("sleep 1234.6") && said.contains("directory /"), "{said}");
    assert!(!runs("1234.6"));
    assert_eq!(std::fs::read_dir(place.path().join("guards")).unwrap().count(), 0);
}
