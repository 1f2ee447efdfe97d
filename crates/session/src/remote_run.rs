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
use crate::progress::Progress;
use crate::remote_paths::{self, Path};
use crate::request::{Asked, Manner};
use crate::{execute, survey};

/// A checked request to measure paths to another machine.
pub struct RemoteRun {
    pub asked: Asked,
    pub manner: Manner,
    /// Name of each path and address of its server, the baseline first.
    pub paths: Vec<(String, SocketAddr)>,
    pub token: Option<Token>,
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
                    Err(RemoteError::Stopped) => return Ok(None),
                    Err(error) => return Err(error.into()),
                };
            paths.push(Path { name: name.clone(), remote });
        }
        remote_paths::check_limits(&self.asked, &self.manner, &paths)?;
        let mut manner = self.manner;
        let mut machine = Machine::open(true)?;
        for pid in paths.iter().filter_map(|path| path.remote.process_here()) {
            machine.add_own_process(pid);
        }
        manner.placement = remote_paths::placement(manner.placement.policy, &paths)?;
        let may_unpin = !manner.given.placement && remote_paths::on_one_machine(&paths);
        let of_server = remote_paths::first_lines(&paths, &manner);
        let survey =
            survey::look_and_place(&mut machine, &mut manner, may_unpin, of_server, &progress)?;

        // All cells use the MTU of the baseline, whose device is the underlay's.
        let mtu = paths[0].mtu();
        let subjects: Vec<PathUnderTest> =
            paths.iter().map(|path| path.subject(&here, mtu)).collect();
        let keys: Vec<(&str, &str, u32)> =
            subjects.iter().map(|s| (s.mode.as_str(), s.offload.name(), s.mtu)).collect();
        let unset = vec![Vec::new(); subjects.len()];
        let cells = plan::cells(&keys, &paths[0].name, &self.asked.asks, &unset);
        let plan = manner.plan(cells, Vec::new(), &survey);
        let (outcome, timeline) =
            execute::run(&mut progress, &plan, &subjects, &machine, &mut execute::Nothing, stop)?;

        let ended = outcome.ended;
        let mut warnings = remote_paths::warnings(&paths);
        warnings.extend(survey::warnings(&survey, &manner));
        // Partial results are still useful, but must be recognisable.
        if ended == Ended::Failed {
            warnings.push(
                "the server disappeared before the last block: these are partial results".into(),
            );
        }
        let record = remote_paths::record(&paths, Vec::new());
        let run = FinishedRun {
            asked: &self.asked,
            manner: &manner,
            started,
            machine: &machine,
            privileges: remote_paths::privileges(),
            survey: &survey,
        };
        let results = run.results(outcome, record, timeline, warnings)?;
        // The sessions close here, before printing: a stalled reader must not keep them open.
        Ok(Some(Finished { results, ended }))
    }
}
