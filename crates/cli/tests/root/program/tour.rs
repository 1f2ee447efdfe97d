//! `overlane tour`: from a broken overlay to a repaired and accelerated one, without a trace.

use super::launch::run;
use test_support::{need, require};

#[test]
fn the_tour_finds_the_fault_fixes_it_and_removes_everything() {
    let btf = std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
    require!(need::root(), need::that(btf, "BTF of the kernel"), need::tools(&["ip", "ping"]));
    let tour = run(["tour", "--yes"]).expect(0);
    let shown = &tour.stdout;
    let order = [
        "$ overlane lab up vxlan --name tour",
        "tcp_stream",
        "100% packet loss",
        "OV015",
        "$ overlane doctor fix OV015",
        " 0% packet loss",
        "$ overlane accel on --all --netns a",
        "$ overlane undo --all",
        "$ overlane lab down tour",
    ];
    let mut rest = shown.as_str();
    for words in order {
        let at = rest.find(words);
        let at = at.unwrap_or_else(|| panic!("{words:?} is not in:\n{rest}\n{}", tour.stderr));
        rest = &rest[at..];
    }
}
