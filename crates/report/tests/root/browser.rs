//! The page in a real browser: nothing on the console, no overlapping labels, no text under 10
//! pixels, no unreadable text, on a phone, on a desktop, dark and printed.

use crate::example;

use std::path::{Path, PathBuf};
use std::process::Command;

use report::html;
use results::Results;
use test_support::require;

const CHECK: &str = include_str!("browser/check.js");

/// Chromium, if it is installed.
fn chromium() -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = std::env::split_paths(&path)
        .flat_map(|directory| names.map(|name| directory.join(name)))
        .find(|program| program.is_file());
    found.ok_or_else(|| "chromium is not installed".to_owned())
}

/// Runs Chromium on a file; returns standard output and its log.
fn load(chromium: &Path, file: &Path, arguments: &[&str]) -> (String, String) {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new(chromium)
        .args(["--headless", "--disable-gpu", "--no-first-run", "--hide-scrollbars"])
        // Chromium's own sandbox refuses to run as root.
        .args(["--no-sandbox", "--disable-dev-shm-usage", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        // Chromium ignores its options and writes crash reports there: as root, into a user's home.
        .env("HOME", profile.path())
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_CACHE_HOME")
        .args(arguments)
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Console messages of the page, and its attempts to fetch.
fn console(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains("CONSOLE") || line.contains("Refused to")).collect()
}

/// A page, and the window size in pixels: `WIDTH,HEIGHT`.
type View<'a> = (&'a str, &'a str);

/// The page with the checker in it. The page's own policy would forbid scripts, so it is removed.
fn with_checker(page: &str) -> String {
    let policy = page.find("<meta http-equiv").expect("a policy");
    let end = policy + page[policy..].find('>').unwrap() + 1;
    let checker = format!("<script>{CHECK}</script></body>");
    format!("{}{}", &page[..policy], page[end..].replace("</body>", &checker))
}

/// Problems of each page in its window, under a colour scheme. All of them are frames of one page,
/// because Chromium takes longer to start than to show them.
fn findings(chromium: &Path, views: &[View], scheme: &str) -> Vec<Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("page.html");
    let mut outer = "<!DOCTYPE html><meta name=\"color-scheme\" content=\"light dark\">".to_owned();
    for (number, (page, window)) in views.iter().enumerate() {
        // A window is never narrower than 500 pixels, a frame in it may be.
        let (width, height) = window.split_once(',').unwrap();
        let frame = with_checker(page).replace('&', "&amp;").replace('"', "&quot;");
        outer.push_str(&format!(
            "<iframe name=\"{number}\" width=\"{width}\" height=\"{height}\" \
             frameborder=\"0\" srcdoc=\"{frame}\"></iframe>"
        ));
    }
    std::fs::write(&file, outer).unwrap();
    let arguments = [
        "--window-size=1600,1200",
        ["--blink-settings=preferredColorScheme=1", "--blink-settings=preferredColorScheme=0"]
            [usize::from(scheme == "dark")],
        "--virtual-time-budget=20000",
        "--dump-dom",
    ];
    let (dom, log) = load(chromium, &file, &arguments);
    let of = |number: usize, window: &str| {
        let mark = format!("<pre id=\"findings-{number}\">");
        let begin = dom.find(&mark).unwrap_or_else(|| panic!("{number} is not checked: {log}"));
        let list = &dom[begin + mark.len()..];
        let mut lines = list[..list.find("</pre>").unwrap()].lines();
        let (width, _) = window.split_once(',').unwrap();
        assert_eq!(lines.next(), Some(&*format!("{width} {scheme}")), "the window asked for");
        let seen: usize = lines.next().unwrap().parse().unwrap();
        assert!(seen > 20, "{seen} texts were looked at");
        lines.map(String::from).collect()
    };
    views.iter().enumerate().map(|(number, (_, window))| of(number, window)).collect()
}

/// The page as printed: applies print styles to every medium.
fn printed(page: &str) -> String {
    page.replace("@media print", "@media all")
}

fn check(chromium: &Path, what: &str, results: &Results) {
    check_page(chromium, what, &html(results));
}

fn check_page(chromium: &Path, what: &str, page: &str) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("page.html");
    check_light(chromium, what, page);
    std::fs::write(&file, page).unwrap();
    let pdf = directory.path().join("page.pdf");
    let (_, log) = load(chromium, &file, &[&format!("--print-to-pdf={}", pdf.display())]);
    assert!(std::fs::metadata(&pdf).is_ok_and(|pdf| pdf.len() > 10_000), "{what}: {log}");
    check_scheme(chromium, what, page, "dark");
}

/// Checks the console, and the layout in light colours: two of the four starts of Chromium.
fn check_light(chromium: &Path, what: &str, page: &str) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("page.html");
    std::fs::write(&file, page).unwrap();
    let (_, log) = load(chromium, &file, &["--dump-dom"]);
    assert_eq!(console(&log), [""; 0], "{what}");
    check_scheme(chromium, what, page, "light");
}

fn check_scheme(chromium: &Path, what: &str, page: &str, scheme: &str) {
    let printed = printed(page);
    // A4 less its margins is 718 pixels.
    let views = [(page, "390,800"), (page, "1280,900"), (&*printed, "718,1000")];
    let found = findings(chromium, &views, scheme);
    for (name, found) in ["phone", "desktop", "print"].iter().zip(found) {
        let count = found.len();
        assert!(count == 0, "{what}, {name}, {scheme}: {count} findings:\n{}", found.join("\n"));
    }
}

#[test]
fn page_of_every_dimension() {
    let chromium = require!(chromium());
    check(&chromium, "every dimension", &example::deep());
}

#[test]
fn page_of_the_lab() {
    let chromium = require!(chromium());
    // `page_of_every_dimension` covers dark and printed pages.
    check_light(&chromium, "lab", &html(&example::results()));
}

/// Pages of a testbed's recording, and of a longer one with long names.
#[test]
fn pages_of_recordings() {
    let chromium = require!(chromium());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/watch.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let intervals: Vec<observe::Snapshot> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut recording = report::Recording::default();
    intervals.iter().for_each(|interval| recording.add(interval));
    check_page(&chromium, "recording", &report::recording_html(&recording));
    let mut long = report::Recording::default();
    for (number, interval) in intervals.iter().cycle().take(1000).enumerate() {
        let mut interval = interval.clone();
        interval.time_s = intervals[0].time_s + number as f64;
        for hop in interval.paths.iter_mut().flat_map(|path| &mut path.hops) {
            hop.namespace = format!("{}-of-a-namespace-that-has-a-long-name", hop.namespace);
            hop.since_before.p99_ns *= 1 + number as u64;
        }
        long.add(&interval);
    }
    check_page(&chromium, "long recording", &report::recording_html(&long));
}

#[test]
fn published_figures_of_every_plan() {
    let chromium = require!(chromium());
    let plans =
        ["qperf-sweep", "netperf-offload", "docker-modes", "udp-tuning", "tap-bridge", "accel"];
    let pages = plans.map(|plan| {
        let mut results = example::deep();
        results.plan.name = Some(plan.to_string());
        // Short, because other tests check the rest of the page.
        results.timeline = None;
        results.cells.truncate(5);
        html(&results)
    });
    let views = pages.each_ref().map(|page| (page.as_str(), "390,800"));
    for (plan, found) in plans.iter().zip(findings(&chromium, &views, "light")) {
        assert!(found.is_empty(), "{plan}: {}", found.join("\n"));
    }
}

/// The page of a results file, and pages of measured results if `OVERLANE_RESULTS` names their
/// files, separated by colons.
#[test]
fn pages_of_results_files() {
    let chromium = require!(chromium());
    let directory = tempfile::tempdir().unwrap();
    let written = directory.path().join("results.json");
    let mut results = example::results();
    // The largest allowed value.
    results.cells.iter_mut().for_each(|cell| cell.message_bytes = cell.message_bytes.min(65_507));
    std::fs::write(&written, serde_json::to_vec(&results).unwrap()).unwrap();
    let named = std::env::var_os("OVERLANE_RESULTS").unwrap_or_default();
    let named = std::env::split_paths(&named).filter(|file| !file.as_os_str().is_empty());
    for file in named.chain([written]) {
        let results = Results::read(&file).unwrap();
        check(&chromium, &file.display().to_string(), &results);
    }
}

#[test]
fn long_names_and_many_rows() {
    let chromium = require!(chromium());
    let mut results = example::deep();
    for (i, cell) in results.cells.iter_mut().enumerate() {
        if cell.mode != "host" {
            cell.mode.push_str(&format!("-with-a-very-long-name-{}", i % 5));
        }
        for hop in &mut cell.hops {
            hop.device = format!("{}-of-a-device-that-has-a-long-name", hop.device);
            hop.drops = 123_456_789;
        }
        cell.setting = cell.setting.as_ref().map(|s| s.replace("netdev", &"netdev_".repeat(9)));
    }
    check(&chromium, "long names", &results);
}

/// Tests the checker: each fault is put into a page, and must be found.
#[test]
fn faults_are_found() {
    let chromium = require!(chromium());
    let page = html(&example::results());
    let with = |markup: &str| page.replacen("<h2>Tables", &format!("{markup}<h2>Tables"), 1);
    let svg = |inner: &str| {
        with(&format!(
            "<figure><svg class=\"chart\" viewBox=\"0 0 350 100\">{inner}</svg></figure>"
        ))
    };
    let faults = [
        (
            "overlap",
            svg(
                "<text class=\"t\" x=\"9\" y=\"50\">one</text><text class=\"t\" x=\"15\" y=\"52\">two</text>",
            ),
        ),
        ("outside", svg("<text class=\"t\" x=\"340\" y=\"50\">runs out of it</text>")),
        ("small", svg("<text font-size=\"8\" x=\"40\" y=\"50\">tiny</text>")),
        ("small", with("<p><small><small><small><small>tiny</small></small></small></small></p>")),
        ("contrast", svg("<text font-size=\"12\" fill=\"#eee\" x=\"40\" y=\"50\">pale</text>")),
        ("wide", with("<div class=\"muted\"><svg width=\"2000\" height=\"9\"></svg></div>")),
    ];
    let views = faults.each_ref().map(|(_, page)| (page.as_str(), "390,800"));
    for ((fault, _), found) in faults.iter().zip(findings(&chromium, &views, "light")) {
        assert!(found.iter().any(|finding| finding.starts_with(fault)), "{fault}: {found:?}");
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("page.html");
    std::fs::write(&file, with("<script>1</script>")).unwrap();
    let (_, log) = load(&chromium, &file, &["--dump-dom"]);
    assert!(!console(&log).is_empty(), "a script that the policy refuses: {log}");
}
