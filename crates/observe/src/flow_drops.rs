//! Drops of the packets that a filter matches, for `watch`: by a tracer that sees drops only. Other
//! drops of the machine are counted without their headers ([`crate::drops`]).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::event::{Event, Kind};
use crate::explain::{explanation, is_used};
use crate::filter::Filter;
use crate::places::Places;
use crate::record::Names;
use crate::snapshot::DropSeen;
use crate::suppressed::Suppressed;
use crate::tracer::{TraceError, Tracer};

/// Namespace, device, reason, function.
type Place = (String, Option<String>, String, Option<String>);

/// Drops of a filter's packets, until this value is dropped.
#[derive(Debug)]
pub(crate) struct FlowDrops {
    tracer: Tracer,
    /// Drops that were only counted, as of the last call.
    counted: Vec<Suppressed>,
}

impl FlowDrops {
    /// Attaches the program for a filter that selects packets by their headers; `None` for others.
    pub fn start(filter: &Filter, places: &Places) -> Result<Option<FlowDrops>, TraceError> {
        // Without a filter, the counts of all drops are these drops.
        if !filter.is_selective() {
            return Ok(None);
        }
        let filter = Filter { drops_only: true, sample: 1, headers: None, ..filter.clone() };
        let tracer = Tracer::start(filter, places)?;
        Ok(Some(FlowDrops { tracer, counted: Vec::new() }))
    }

    /// Parses the tunnels of new devices, too.
    pub fn know(&mut self, places: &Places) -> Result<(), TraceError> {
        self.tracer.know(places)
    }

    /// Returns the drops since the last call, most packets first.
    pub fn since(&mut self, names: &dyn Names) -> Result<Vec<DropSeen>, TraceError> {
        let mut drops: BTreeMap<Place, u64> = BTreeMap::new();
        loop {
            let events = self.tracer.poll(Duration::ZERO)?;
            if events.is_empty() {
                break;
            }
            for event in events.iter().filter(|event| event.kind == Kind::Dropped) {
                let place = place(event, names);
                if !is_used(&place.2, place.3.as_deref()) {
                    *drops.entry(place).or_default() += packets(event);
                }
            }
        }
        // Beyond the limit of reported drops, neither namespace nor device is known.
        let all = self.tracer.suppressed()?;
        let more = Suppressed::since(&self.counted, &all).into_iter();
        for more in more.filter(|more| !is_used(&more.reason, more.function.as_deref())) {
            let place = (names.namespace(None), None, more.reason, more.function);
            *drops.entry(place).or_default() += more.packets;
        }
        self.counted = all;
        let mut drops: Vec<DropSeen> = drops.into_iter().map(seen).collect();
        drops.sort_by_key(|drop| std::cmp::Reverse(drop.packets));
        Ok(drops)
    }
}

fn place(event: &Event, names: &dyn Names) -> Place {
    let device = event.device.as_ref().map(|(_, name)| name.clone());
    let function = names.function(event.location);
    (names.namespace(event.netns), device, names.reason(event.reason), function)
}

/// Packets that a dropped one stands for.
fn packets(event: &Event) -> u64 {
    event.gso.map_or(1, |(_, packets)| u64::from(packets).max(1))
}

fn seen(((namespace, device, reason, function), packets): (Place, u64)) -> DropSeen {
    let known = explanation(&reason, function.as_deref());
    DropSeen {
        namespace,
        device,
        packets,
        meaning: known.map(|known| known.meaning.to_owned()),
        check: known.and_then(|known| known.check.map(str::to_owned)),
        reason,
        function,
    }
}
