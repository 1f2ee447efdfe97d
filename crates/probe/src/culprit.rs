//! Settings that can cause a verdict, ranked by how well they explain the bad classes.

use netstate::defects::{Circumstances, DEFECTS, Defect, Shows, kernel_version};
use netstate::interface::Vxlan;

use crate::class::{Checksum, Class, Port, Transport};
use crate::features::{RECEIVING, SENDING, is_gso};
use crate::judge::Verdict;
use crate::message::EndFacts;
use crate::report::{BadPath, Candidate, ClassResult, Direction, End, HopFacts, Report, Search};

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
    let ends = [Place::end(End::Here, &report.here), Place::end(End::Peer, &report.there)];
    // The device nearest to the receiver comes first. A GSO packet that is cut earlier, or a
    // checksum that is finished earlier, passes the later devices unharmed: a setting of an earlier
    // device would always seem to be the cause.
    let hops = report.hops.iter().map(Place::hop);
    let ([sender, receiver], hops): (_, Vec<Place<'_>>) = match way {
        Direction::Out => (ends, hops.rev().collect()),
        Direction::Back => {
            let [here, there] = ends;
            ([there, here], hops.collect())
        }
    };
    let tested = |result: &&&ClassResult| !matches!(result.verdict, Verdict::Untestable { .. });
    let mut list = Vec::new();
    for place in hops.iter().chain([&sender]) {
        for one in SENDING.iter().filter(|one| place.is_on(one.feature)) {
            let explained = bad.iter().filter(|result| (one.uses)(&result.class)).count();
            let users =
                all.iter().filter(tested).filter(|result| (one.uses)(&result.class)).count();
            // A setting that explains no damaged class is no candidate, however plausible.
            if explained == 0 {
                continue;
            }
            // Jaccard index of the bad classes and those that use the feature.
            let fit = explained as f64 / (users + bad.len() - explained).max(1) as f64;
            let facts = place.facts;
            let reported = facts.and_then(|end| reported(one.feature, end, bad, report.translated));
            list.push(Candidate {
                fit,
                reported: reported.map(Defect::reports),
                ..place.candidate(one.feature)
            });
        }
    }
    // The order of the table decides between equals: the sort is stable.
    let weight = |one: &Candidate| one.fit + if one.reported.is_some() { REPORTED } else { 0.0 };
    list.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    for place in hops.iter().chain([&receiver]) {
        let on = RECEIVING.iter().filter(|feature| place.is_on(feature));
        list.extend(on.map(|feature| place.candidate(feature)));
    }
    list
}

/// A device on the path.
struct Place<'a> {
    end: End,
    netns: Option<&'a String>,
    device: &'a str,
    features_on: &'a [String],
    /// Facts about an end; `None` for a hop: defects are looked up for ends only.
    facts: Option<&'a EndFacts>,
}

impl<'a> Place<'a> {
    fn end(end: End, facts: &'a EndFacts) -> Place<'a> {
        let (device, features_on) = (&facts.device, &facts.features_on);
        Place { end, netns: None, device, features_on, facts: Some(facts) }
    }

    fn hop(hop: &'a HopFacts) -> Place<'a> {
        let (device, features_on) = (&hop.device, &hop.features_on);
        Place { end: End::Hop, netns: hop.netns.as_ref(), device, features_on, facts: None }
    }

    fn is_on(&self, feature: &str) -> bool {
        self.features_on.iter().any(|on| on == feature)
    }

    /// Returns a feature as a candidate that explains nothing yet.
    fn candidate(&self, feature: &str) -> Candidate {
        Candidate {
            end: self.end,
            netns: self.netns.cloned(),
            device: self.device.to_owned(),
            feature: feature.to_owned(),
            fit: 0.0,
            reported: None,
        }
    }
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
}
