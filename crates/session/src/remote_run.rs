//! `measure run`: measures one or two paths to another machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use measure::path_under_test::PathUnderTest;
use measure::plan;
use measure::remote::{Remote, RemoteError, Token};
use measure::run::Ended;
use measure::sampler::Machine;
use sys::netns::NetNs;

use crate::assembly::FinishedRun;
use crate::finished::Finished;
use crate::keeping::Keeping;
use crate::progress::Progress;
use crate::remote_paths::{self, Path};
use crate::request::{Asked, RunOptions};
use crate::{execute, survey};

/// A checked request to measure paths to another machine.
pub struct RemoteRun {
    pub asked: Asked,
    pub run_options: RunOptions,
    /// Name of each path and address of its server, the baseline first.
    pub paths: Vec<(String, SocketAddr)>,
    pub token: Option<Token>,
    pub keeping: Keeping,
}

impl RemoteRun {
    /// Measures the paths. `None` if it was interrupted before a server answered.
    ///
    /// # Errors
    /// A server that is unreachable or refuses the token; a load beyond its limits.
    pub fn run(self, stop: &Arc<AtomicBool>) -> anyhow::Result<Option<Finished>> {
        let started = SystemTime::now();
        let mut progress = Progress::new("reading both machines");
        let here = Arc::new(NetNs::current()?);
        let mut paths = Vec::new();
        for (name, address) in &self.paths {
            progress.prepare(format!("connecting to {address}"));
            let remote =
                match Remote::connect(*address, self.token.clone(), &here, Arc::clone(stop)) {
                    Ok(remote) => Arc::new(remote),
                    // Ctrl-C before the first sample: there are no results to write.
                    Err(RemoteError::Stopped) => return Ok(None),
                    Err(error) => return Err(error.into()),
                };
            paths.push(Path { name: name.clone(), remote });
        }
        remote_paths::check_limits(&self.asked, &self.run_options, &paths)?;
        let (mut run_options, mut keeping) = (self.run_options, self.keeping);
        let mut machine = Machine::open(true)?;
        for pid in paths.iter().filter_map(|path| path.remote.process_here()) {
            machine.add_own_process(pid);
        }
        run_options.placement = remote_paths::placement(run_options.placement.policy, &paths)?;
        let may_unpin = !run_options.given.placement && remote_paths::on_one_machine(&paths);
        let of_server = remote_paths::first_lines(&paths, &run_options);
        let survey = survey::look_and_place(
            &mut machine,
            &mut run_options,
            may_unpin,
            of_server,
            &progress,
        )?;

        // All cells use the MTU of the baseline, whose device is the underlay's.
        let mtu = paths[0].mtu();
        let subjects: Vec<PathUnderTest> =
            paths.iter().map(|path| path.subject(&here, mtu)).collect();
        let keys: Vec<(&str, &str, u32)> =
            subjects.iter().map(|s| (s.mode.as_str(), s.offload.name(), s.mtu)).collect();
        let unset = vec![Vec::new(); subjects.len()];
        let cells = plan::cells(&keys, &paths[0].name, &self.asked.asks, &unset);
        let plan = run_options.plan(cells, Vec::new(), &survey);
        let record = remote_paths::record(&paths, Vec::new());
        let run = FinishedRun {
            asked: &self.asked,
            run_options: &run_options,
            started,
            machine: &machine,
            privileges: remote_paths::privileges(),
            survey: &survey,
        };
        run.begin(&mut keeping, &plan, &subjects, &record)?;
        let (outcome, timeline) = execute::run(
            &mut progress,
            &plan,
            &subjects,
            &machine,
            &mut execute::Nothing,
            &mut keeping,
            stop,
        )?;

        let ended = outcome.ended;
        let mut warnings = remote_paths::warnings(&paths);
        warnings.extend(survey::warnings(&survey, &run_options));
        warnings.extend(families(&self.paths));
        // Partial results are still useful, but must be recognisable.
        if ended == Ended::Failed {
            warnings.push(
                "the server disappeared before the last block: these are partial results".into(),
            );
        }
        let results = run.results(outcome, record, timeline, warnings)?;
        // The sessions close here, before printing: a stalled reader must not keep them open.
        Ok(Some(Finished { results, ended }))
    }
}

/// Returns a warning if the addresses of two paths have different families.
fn families(paths: &[(String, SocketAddr)]) -> Option<String> {
    let [(_, baseline), (_, path)] = paths else { return None };
    (baseline.is_ipv4() != path.is_ipv4()).then(|| {
        format!(
            "{} and {} are of different address families: headers of IPv6 are 20 bytes longer",
            baseline.ip(),
            path.ip()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_two_families_are_compared_with_a_warning() {
        let warning = |addresses: &[&str]| {
            let path = |address: &&str| ("path".to_owned(), address.parse().unwrap());
            families(&addresses.iter().map(path).collect::<Vec<_>>())
        };
        let mixed = warning(&["10.0.0.2:1", "[fd00::2]:1"]).unwrap();
        assert!(mixed.starts_with("10.0.0.2 and fd00::2 are of different"), "{mixed}");
        assert_eq!(warning(&["10.0.0.2:1", "10.1.0.2:1"]), None);
        assert_eq!(warning(&["[fd00::2]:1"]), None);
    }
}
