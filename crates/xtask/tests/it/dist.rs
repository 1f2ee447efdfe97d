//! Checks the parts of a release that need no build: versions, scripts, and the container image.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use test_support::{need, require};

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(top().join(name)).unwrap()
}

fn output(command: &mut Command) -> String {
    let ended = command.output().unwrap();
    assert!(ended.status.success(), "{command:?}: {ended:?}");
    String::from_utf8(ended.stdout).unwrap()
}

#[test]
fn every_file_with_a_version_has_this_one() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(output(&mut Command::new(top().join("scripts/dist/version"))).trim(), version);
    for (file, line) in [
        ("examples/kubernetes/accel/chart/Chart.yaml", format!("version: {version}")),
        ("examples/kubernetes/accel/chart/Chart.yaml", format!("appVersion: \"{version}\"")),
        ("examples/kubernetes/accel/base/kustomization.yaml", format!("    newTag: {version}")),
    ] {
        assert!(read(file).lines().any(|own| own == line), "{file}: no line {line:?}");
    }
}

#[test]
fn scripts_are_accepted_by_their_shells() {
    for (directory, shell) in [("packaging/scripts", "sh"), ("scripts/dist", "bash")] {
        for entry in top().join(directory).read_dir().unwrap() {
            let path = entry.unwrap().path();
            if std::fs::read_to_string(&path).unwrap().starts_with("#!/usr/bin/env python3") {
                continue;
            }
            output(Command::new(shell).arg("-n").arg(path));
        }
    }
}

/// The units run the program where the package installs it.
#[test]
fn units_name_the_program_of_the_package() {
    for entry in top().join("examples/systemd").read_dir().unwrap() {
        let path = entry.unwrap().path();
        let unit = std::fs::read_to_string(&path).unwrap();
        assert!(unit.contains("\nExecStart=/usr/bin/overlane "), "{}", path.display());
    }
}

/// Stages with the same files in different directories give the same archive. Each digest in it
/// matches its blob.
#[test]
fn the_image_is_reproducible_and_its_digests_are_right() {
    require!(need::tools(&["python3", "tar", "sha256sum"]));
    let directory = tempfile::tempdir().unwrap();
    let mut printed = Vec::new();
    for name in ["first", "second"] {
        let stage = directory.path().join(name);
        for (file, text) in [
            ("usr/bin/overlane", "a program"),
            ("usr/share/doc/overlane/LICENCES.gz", "licences"),
            ("usr/share/doc/overlane/overlane.cdx.json.gz", "components"),
        ] {
            let file = stage.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let stage = stage.display();
        printed.push(output(
            Command::new(top().join("scripts/dist/image"))
                .arg(directory.path().join(format!("{name}.tar")))
                .args([format!("x86_64={stage}"), format!("aarch64={stage}")])
                .env("SOURCE_DATE_EPOCH", "1700000000"),
        ));
    }
    let read = |name: &str| std::fs::read(directory.path().join(name)).unwrap();
    assert!(read("first.tar") == read("second.tar"), "the archives differ");
    assert_eq!(printed[0], printed[1]);

    let layout = directory.path().join("layout");
    std::fs::create_dir(&layout).unwrap();
    output(Command::new("tar").args(["-xf", "../first.tar"]).current_dir(&layout));
    let blobs = layout.join("blobs/sha256");
    for entry in blobs.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let sum = output(Command::new("sha256sum").arg(&path));
        assert!(sum.starts_with(path.file_name().unwrap().to_str().unwrap()), "{sum}");
    }
    let json =
        |path: PathBuf| -> Value { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
    let blob = |described: &Value| {
        blobs.join(described["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap())
    };
    let index = &json(layout.join("index.json"))["manifests"][0];
    assert_eq!(index["digest"], printed[0].trim());
    let images = json(blob(index));
    let images = images["manifests"].as_array().unwrap();
    for (image, arch) in images.iter().zip(["amd64", "arm64"]) {
        assert_eq!(image["platform"]["architecture"], arch);
        let config = json(blob(&json(blob(image))["config"]));
        assert_eq!(config["architecture"], arch);
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/overlane");
    }
    assert_eq!(images.len(), 2);
}

/// The packed chart and manifests name the image by its digest.
#[test]
fn the_chart_and_the_manifests_name_the_image_by_its_digest() {
    require!(need::tools(&["tar", "gzip"]));
    let directory = tempfile::tempdir().unwrap();
    let [chart, manifests] = ["chart.tgz", "manifests.tgz"].map(|name| directory.path().join(name));
    let digest = format!("sha256:{}", "0a".repeat(32));
    output(
        Command::new(top().join("scripts/dist/chart"))
            .arg(&digest)
            .args([&chart, &manifests])
            .env("SOURCE_DATE_EPOCH", "1700000000"),
    );
    let file = |archive: &Path, name: &str| {
        output(Command::new("tar").arg("-xzOf").arg(archive).arg(format!("overlane-accel/{name}")))
    };
    let values = file(&chart, "values.yaml");
    assert!(values.contains(&format!("\n  digest: {digest}\n")), "{values}");
    let kustomization = file(&manifests, "base/kustomization.yaml");
    assert!(kustomization.contains(&format!("\n    digest: {digest}\n")), "{kustomization}");
    assert!(!kustomization.contains("newTag"), "{kustomization}");
    require!(need::tool("kubectl"));
    output(Command::new("tar").arg("-xzf").arg(&manifests).arg("-C").arg(directory.path()));
    let selector = directory.path().join("overlane-accel/kernel-selector");
    let built = output(Command::new("kubectl").arg("kustomize").arg(selector));
    assert!(built.contains(&format!("image: overlane@{digest}\n")), "{built}");
}

#[test]
fn the_manifest_of_the_kubectl_plug_in_has_the_sums_of_the_archives() {
    require!(need::tool("sha256sum"));
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(top().join("scripts/dist/krew"));
    command.arg(directory.path()).arg("1.2.3").env_remove("RELEASE_URL");
    let manifest = directory.path().join("overlane-1.2.3-krew.yaml");
    output(&mut command);
    assert!(!manifest.exists(), "a manifest needs the location of the archives");
    let mut wanted = Vec::new();
    for arch in ["x86_64", "aarch64"] {
        let archive = directory.path().join(format!("overlane-1.2.3-linux-{arch}.tar.gz"));
        std::fs::write(&archive, arch).unwrap();
        let sum = output(Command::new("sha256sum").arg(&archive));
        wanted.push(format!("sha256: {}", sum.split(' ').next().unwrap()));
        wanted.push(format!("uri: https://x.invalid/overlane-1.2.3-linux-{arch}.tar.gz"));
        wanted.push(format!("{{from: overlane-1.2.3-linux-{arch}/bin/overlane, to: .}}"));
    }
    output(command.env("RELEASE_URL", "https://x.invalid"));
    let text = std::fs::read_to_string(manifest).unwrap();
    for line in wanted {
        assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
    }
}
