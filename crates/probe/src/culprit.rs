//! Settings that can cause a verdict: ranked by how well they explain the bad classes, and searched
//! by switching them off.

use std::collections::BTreeSet;
use std::path::Path;

use netstate::Netlink;
use netstate::defects::{Circumstances, DEFECTS, Defect, Shows, kernel_version};
use netstate::interface::Vxlan;
use settings::change::{Change, Namespace, Target};
use settings::trial::Trial;

use crate::class::{Checksum, Class, Extra, Family, Port, Transport, Tunnel};
use crate::exchange::{Exchange, Trouble};
use crate::judge::Verdict;
use crate::message::EndFacts;
use crate::report::{BadPath, Candidate, ClassResult, Direction, End, Report, Search};

/// Code of journal entries that a search makes.
const CODE: &str = "probe";
/// Repetitions of each bad class in one step of a search.
const STEP: u16 = 4;
/// Most classes of one step.
const STEP_CLASSES: usize = 8;

/// A feature of a sending device, and the classes that use it.
struct Sending {
    feature: &'static str,
    uses: fn(&Class) -> bool,
}

fn is_gso(class: &Class, transport: Transport) -> bool {
    class.segment > 0 && class.transport == transport
}

/// Whether a device must cut packets of a tunnel with or without outer checksums. The kernel itself
/// cuts those of a tunnel in a tunnel.
fn is_tunnel_gso(class: &Class, checksum: bool) -> bool {
    let wanted = |tunnel: Tunnel| tunnel.checksum == checksum && !tunnel.nested;
    class.segment > 0 && class.tunnel.is_some_and(wanted)
}

/// Features of the sending device, the most specific first. Names as in `ethtool -k`.
const SENDING: &[Sending] = &[
    Sending { feature: "tx-udp_tnl-csum-segmentation", uses: |class| is_tunnel_gso(class, true) },
    Sending { feature: "tx-udp_tnl-segmentation", uses: |class| is_tunnel_gso(class, false) },
    Sending {
        feature: "tx-tcp-ecn-segmentation",
        uses: |class| is_gso(class, Transport::Tcp) && class.extra == Extra::Ecn,
    },
    Sending { feature: "tx-udp-segmentation", uses: |class| is_gso(class, Transport::Udp) },
    Sending {
        feature: "tx-tcp-segmentation",
        uses: |class| is_gso(class, Transport::Tcp) && class.inner_family() == Family::V4,
    },
    Sending {
        feature: "tx-tcp6-segmentation",
        uses: |class| is_gso(class, Transport::Tcp) && class.inner_family() == Family::V6,
    },
    Sending {
        feature: "tx-gso-partial",
        uses: |class| class.segment > 0 && class.tunnel.is_some(),
    },
    Sending {
        feature: "tx-checksum-ipv4",
        uses: |class| class.checksum == Checksum::Partial && class.inner_family() == Family::V4,
    },
    Sending {
        feature: "tx-checksum-ipv6",
        uses: |class| class.checksum == Checksum::Partial && class.inner_family() == Family::V6,
    },
    Sending {
        feature: "tx-checksum-ip-generic",
        uses: |class| class.checksum == Checksum::Partial,
    },
    Sending { feature: "tx-scatter-gather", uses: |class| class.segment > 0 },
];

/// Features of the receiving device that merge packets or judge checksums.
const RECEIVING: &[&str] =
    &["rx-gro-hw", "rx-lro", "rx-udp-gro-forwarding", "rx-gro-list", "rx-gro", "rx-checksum"];

/// Advantage of a candidate whose fault was reported with this kernel, driver or hypervisor.
const REPORTED: f64 = 0.25;

/// Whether packets of a class show a kind of defect.
fn shows(kind: Shows, class: &Class) -> bool {
    let is_partial = class.checksum == Checksum::Partial;
    match kind {
        Shows::UdpSegmentation => is_gso(class, Transport::Udp),
        Shows::PartialToTunnelPort => is_partial && [Port::Vxlan, Port::Otv].contains(&class.port),
        Shows::PartialInTunnel => is_partial && class.tunnel.is_some(),
        Shows::OuterChecksum => class.tunnel.is_some_and(|tunnel| tunnel.checksum),
    }
}

/// Returns a reported defect of a feature that the bad classes show.
fn reported(
    feature: &str,
    end: &EndFacts,
    bad: &[&ClassResult],
    translates: bool,
) -> Option<&'static Defect> {
    let of_feature = DEFECTS.iter().filter(|defect| defect.feature == feature);
    of_feature.into_iter().find(|defect| {
        bad.iter().map(|result| &result.class).any(|class| {
            let checksum = class.tunnel.is_some_and(|tunnel| tunnel.checksum);
            let vxlan = Vxlan { port: class.port.number(0), checksum, ..Vxlan::default() };
            let case = Circumstances {
                kernel: kernel_version(&end.kernel),
                hypervisor: end.hypervisor.as_deref().unwrap_or_default(),
                driver: end.driver.as_deref(),
                kind: end.kind.as_deref(),
                vxlan: Some(&vxlan),
                translates,
            };
            shows(defect.shows, class) && (defect.applies)(&case)
        })
    })
}

/// Ranks the settings that can cause bad classes in one direction.
fn candidates(
    way: Direction,
    bad: &[&ClassResult],
    all: &[&ClassResult],
    report: &Report,
) -> Vec<Candidate> {
    let ends = [(End::Here, &report.here), (End::Peer, &report.there)];
    let [(sender, sending), (receiver, receiving)] = match way {
        Direction::Out => ends,
        Direction::Back => [ends[1], ends[0]],
    };
    let is_on = |end: &EndFacts, feature: &str| end.features_on.iter().any(|on| on == feature);
    let tested = |result: &&&ClassResult| !matches!(result.verdict, Verdict::Untestable { .. });
    let mut list = Vec::new();
    for one in SENDING.iter().filter(|one| is_on(sending, one.feature)) {
        let explained = bad.iter().filter(|result| (one.uses)(&result.class)).count();
        let users = all.iter().filter(tested).filter(|result| (one.uses)(&result.class)).count();
        if explained == 0 {
            continue;
        }
        // Jaccard index of the bad classes and those that use the feature.
        let fit = explained as f64 / (users + bad.len() - explained).max(1) as f64;
        let reported = reported(one.feature, sending, bad, report.translated);
        list.push(Candidate {
            end: sender,
            device: sending.device.clone(),
            feature: one.feature.to_owned(),
            fit,
            reported: reported.map(Defect::reports),
        });
    }
    // The order of the table decides between equals: the sort is stable.
    let weight = |one: &Candidate| one.fit + if one.reported.is_some() { REPORTED } else { 0.0 };
    list.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    for feature in RECEIVING.iter().filter(|feature| is_on(receiving, feature)) {
        let (device, feature) = (receiving.device.clone(), (*feature).to_owned());
        list.push(Candidate { end: receiver, device, feature, fit: 0.0, reported: None });
    }
    list
}

/// Groups the bad classes of a report by direction, verdict and most likely cause.
pub fn group(report: &Report) -> Vec<BadPath> {
    let mut groups: Vec<BadPath> = Vec::new();
    for way in Direction::BOTH {
        let all: Vec<&ClassResult> = report.classes.iter().filter(|one| one.way == way).collect();
        let mut bad: Vec<&ClassResult> =
            all.iter().copied().filter(|one| one.verdict.is_bad()).collect();
        // Take the candidate that explains most, then the rest.
        while !bad.is_empty() {
            let ranked = candidates(way, &bad, &all, report);
            let uses = ranked
                .first()
                .and_then(|first| SENDING.iter().find(|one| one.feature == first.feature))
                .map(|one| one.uses);
            let (now, later): (Vec<_>, Vec<_>) = match uses {
                Some(uses) => bad.iter().copied().partition(|result| uses(&result.class)),
                // No setting of the sender: the receiver, or the path.
                None => (bad.clone(), Vec::new()),
            };
            let first = &now[0].verdict;
            groups.push(BadPath {
                way,
                verdict: first.word().to_owned(),
                detail: first.detail(),
                classes: now.iter().map(|result| result.name.clone()).collect(),
                candidates: match uses {
                    Some(_) => candidates(way, &now, &all, report),
                    None => ranked,
                },
                search: Search::NotDone("needs --yes".to_owned()),
            });
            bad = later;
        }
    }
    groups
}

/// Switches settings off for one step of a search.
pub trait Switch {
    /// Switches these features of the device off, runs the step, and switches them on again.
    ///
    /// # Errors
    /// If a setting cannot be changed or restored, as text.
    fn without(
        &mut self,
        device: &str,
        features: &[&str],
        step: &mut dyn FnMut() -> Result<bool, Trouble>,
    ) -> Result<bool, Trouble>;
}

/// Switches settings of this machine through the journal.
#[derive(Debug)]
pub struct Journaled<'a> {
    /// Directory of the journal.
    pub directory: &'a Path,
}

impl Switch for Journaled<'_> {
    fn without(
        &mut self,
        device: &str,
        features: &[&str],
        step: &mut dyn FnMut() -> Result<bool, Trouble>,
    ) -> Result<bool, Trouble> {
        let failed = |error: &dyn std::fmt::Display| Trouble::Here(error.to_string());
        let netlink = Netlink::open().map_err(|e| failed(&e))?;
        let link = netlink.link(device).map_err(|e| failed(&e))?;
        let namespace = Namespace::here().map_err(|e| failed(&e))?;
        let change = |feature: &&str| {
            let target = Target { namespace: namespace.clone(), interface: &link };
            Change::feature(target, feature, false)
        };
        // Segmentation first: without checksums the kernel switches it off by itself, and a setting
        // that has changed by itself is not touched.
        let place = |feature: &&&str| SENDING.iter().position(|one| one.feature == **feature);
        let mut ordered: Vec<&&str> = features.iter().collect();
        ordered.sort_by_key(place);
        let changes = ordered.into_iter().map(change).collect();
        let mut trial = Trial::begin(self.directory, CODE, changes).map_err(|e| failed(&e))?;
        trial.make().map_err(|e| failed(&e))?;
        let outcome = step();
        // Restore the settings also after a failed step.
        trial.take_back().map_err(|e| failed(&e))?;
        outcome
    }
}

/// Searches the setting that causes damage among the candidates of this machine's device. `is_bad`
/// runs a step and returns whether packets are still bad.
///
/// # Errors
/// If a setting cannot be changed or restored, or a step fails.
pub fn bisect(
    switch: &mut dyn Switch,
    device: &str,
    features: &[&str],
    is_bad: &mut dyn FnMut() -> Result<bool, Trouble>,
) -> Result<Search, Trouble> {
    if features.is_empty() {
        return Ok(Search::NotDone("no setting of this machine can be the cause".to_owned()));
    }
    if switch.without(device, features, is_bad)? {
        return Ok(Search::None);
    }
    // The smallest number of settings from the front that helps. The last of them is necessary.
    let (mut helps, mut not_enough) = (features.len(), 0);
    while not_enough + 1 < helps {
        let middle = usize::midpoint(not_enough, helps);
        match switch.without(device, &features[..middle], is_bad)? {
            true => not_enough = middle,
            false => helps = middle,
        }
    }
    let guilty = features[helps - 1];
    let alone = helps == 1 || !switch.without(device, &[guilty], is_bad)?;
    // Without the change it must be bad again: otherwise the fault has gone by itself.
    if !is_bad()? {
        return Ok(Search::NotDone("the fault disappeared during the search".to_owned()));
    }
    Ok(match alone {
        true => Search::Guilty { device: device.to_owned(), feature: guilty.to_owned() },
        false => Search::Together(features[..helps].iter().map(|f| (*f).to_owned()).collect()),
    })
}

/// Searches the setting that causes the damage of each bad path of a report.
///
/// # Errors
/// If a setting cannot be changed or restored, or an end fails.
pub fn search(
    exchange: &mut Exchange<'_>,
    report: &mut Report,
    switch: &mut dyn Switch,
    say: &dyn Fn(&str),
) -> Result<(), Trouble> {
    for at in 0..report.bad.len() {
        let bad = &report.bad[at];
        let names: BTreeSet<&String> = bad.classes.iter().collect();
        let classes: Vec<Class> = report
            .classes
            .iter()
            .filter(|one| one.way == bad.way && names.contains(&one.name))
            .map(|one| one.class)
            .take(STEP_CLASSES)
            .collect();
        let here = bad.candidates.iter().filter(|one| one.end == End::Here);
        let features: Vec<String> = here.map(|one| one.feature.clone()).collect();
        let features: Vec<&str> = features.iter().map(String::as_str).collect();
        let (way, device) = (bad.way, report.here.device.clone());
        say(&format!("search among {} settings of {device}", features.len()));
        let mut is_bad = || is_bad(exchange, way, &classes);
        let found = bisect(switch, &device, &features, &mut is_bad)?;
        report.bad[at].search = found;
    }
    Ok(())
}

/// Sends bad classes again, with a packet that no device touches. If that is lost, too, the packets
/// are late rather than lost, and are sent again with more time.
fn is_bad(exchange: &mut Exchange<'_>, way: Direction, classes: &[Class]) -> Result<bool, Trouble> {
    let with_control = [classes, &[Class::PLAIN]].concat();
    loop {
        let results = exchange.classes(way, &with_control, STEP)?;
        let Some((control, results)) = results.split_last() else { return Ok(false) };
        if matches!(control.verdict, Verdict::Lost { .. } | Verdict::Late) && exchange.be_patient()
        {
            continue;
        }
        return Ok(results.iter().any(|one| is_still_bad(&one.verdict)));
    }
}

/// A single loss during a search is chance, see [`crate::judge::confirm`].
fn is_still_bad(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Lost { lost, of } => lost * 2 >= *of,
        other => other.is_bad(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_known_defect_has_a_class_that_shows_it() {
        let quick = crate::catalogue::quick(1500);
        for defect in DEFECTS {
            let class = quick.iter().find(|class| shows(defect.shows, class));
            assert!(class.is_some(), "{}", defect.symptom);
            // The feature's own rule must see the class, too.
            let own = SENDING.iter().find(|one| one.feature == defect.feature);
            assert!(own.is_some(), "{}", defect.feature);
        }
    }

    #[test]
    fn a_reported_fault_comes_first_among_equals() {
        let end = |kernel: &str| EndFacts {
            device: "eth0".to_owned(),
            kind: None,
            driver: Some("virtio_net".to_owned()),
            mtu: 1500,
            kernel: kernel.to_owned(),
            hypervisor: Some("KVM".to_owned()),
            features_on: ["tx-udp-segmentation", "tx-scatter-gather"].map(str::to_owned).into(),
            other: None,
            on_link: true,
            limited: None,
        };
        let class =
            Class { segment: 1000, payload: 4000, checksum: Checksum::Partial, ..Class::PLAIN };
        let bad = ClassResult {
            way: Direction::Out,
            name: class.to_string(),
            class,
            verdict: Verdict::Lost { lost: 4, of: 4 },
            handed: Default::default(),
            arrived: Default::default(),
        };
        let reports = |kernel| {
            let defect = reported("tx-udp-segmentation", &end(kernel), &[&bad], false);
            defect.map(Defect::reports)
        };
        assert_eq!(reports("6.17.0-41-generic").as_deref(), Some("tailscale/tailscale#21335"));
        assert!(reports("7.0.2").is_some_and(|text| text.contains("#19918")));
        assert_eq!(reports("6.18.44"), None);
    }

    /// A device whose packets are bad while one of the guilty features is on.
    struct Device {
        guilty: Vec<&'static str>,
        off: std::rc::Rc<std::cell::RefCell<Vec<String>>>,
        steps: usize,
    }

    impl Switch for Device {
        fn without(
            &mut self,
            _: &str,
            features: &[&str],
            step: &mut dyn FnMut() -> Result<bool, Trouble>,
        ) -> Result<bool, Trouble> {
            self.steps += 1;
            *self.off.borrow_mut() = features.iter().map(|f| (*f).to_owned()).collect();
            let bad = step();
            self.off.borrow_mut().clear();
            bad
        }
    }

    fn find(guilty: &[&'static str]) -> (Search, usize) {
        let off = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let mut device = Device { guilty: guilty.to_vec(), off: off.clone(), steps: 0 };
        let culprits = device.guilty.clone();
        let mut is_bad = || {
            let off = off.borrow();
            Ok(culprits.iter().any(|feature| !off.iter().any(|other| other == feature)))
        };
        let features = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let found = bisect(&mut device, "eth0", &features, &mut is_bad).unwrap();
        (found, device.steps)
    }

    #[test]
    fn the_guilty_setting_is_found_in_few_steps() {
        for feature in ["a", "b", "d", "h"] {
            let (found, steps) = find(&[feature]);
            let wanted = Search::Guilty { device: "eth0".into(), feature: feature.into() };
            assert_eq!(found, wanted);
            assert!(steps <= 5, "{steps}");
        }
        assert_eq!(find(&["elsewhere"]).0, Search::None);
        let both = ["a", "b", "c"].map(str::to_owned).to_vec();
        assert_eq!(find(&["b", "c"]).0, Search::Together(both));
        assert!(matches!(find(&[]).0, Search::NotDone(_)));
    }
}
