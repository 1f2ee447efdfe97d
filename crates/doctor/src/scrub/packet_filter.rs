//! Packet filters: rules, answers of the evaluation, and translations.

use ruleset::{Clamp, Match};

use super::{Scrubber, name, read};
use crate::host::{
    DropRule, Filtered, LongChain, Passage, RejectedService, Stalled, TranslationRule, Translations,
};

/// Most rules that replace one rule which matches name prefixes.
const MOST_RULES: usize = 1000;

impl Scrubber {
    pub(super) fn translations(&mut self, all: &mut Translations) {
        let Translations { rules, all_constant: _, stalled, stalled_unread, rejected } = all;
        *stalled_unread = stalled_unread.as_deref().map(name::reason);
        for RejectedService { family, table, map, to, protocol: _, port: _ } in rejected {
            *family = name::identifier(family);
            (*table, *map) = (self.table(table), self.chain(map));
            *to = self.addresses.ip(*to);
        }
        for TranslationRule { family, table, chain, handle: _, to } in rules {
            *family = name::identifier(family);
            (*table, *chain) = (self.table(table), self.chain(chain));
            *to = self.addresses.ip(*to);
        }
        for Stalled { protocol: _, from, to: (to, _), now } in stalled.iter_mut().flatten() {
            for address in [from, to, now] {
                *address = self.addresses.ip(*address);
            }
        }
    }

    pub(super) fn passage(&mut self, passage: &mut Passage) {
        let Passage {
            kind: _,
            from,
            to,
            port: _,
            input: _,
            output: _,
            verdict,
            longest,
            mark: _,
            routed,
        } = passage;
        if let Some(routed) = routed {
            read(routed, |_| {});
        }
        (*from, *to) = (self.addresses.ip(*from), self.addresses.ip(*to));
        match verdict {
            Filtered::Passed | Filtered::Undecided => {}
            Filtered::Dropped { family, table, chain, handle: _, is_meant: _ } => {
                *family = name::identifier(family);
                (*table, *chain) = (self.table(table), self.chain(chain));
            }
            Filtered::Depends { family, table, chain, handle: _, on } => {
                *family = name::identifier(family);
                (*table, *chain) = (self.table(table), self.chain(chain));
                // Words of a rule, as "limit" or "set NAME".
                *on = name::identifier(on);
            }
            Filtered::Translated { family, table, chain, handle: _, to } => {
                *family = name::identifier(family);
                (*table, *chain) = (self.table(table), self.chain(chain));
                *to = to.map(|to| self.addresses.ip(to));
            }
        }
        if let Some(LongChain { family, table, chain, rules: _, repeated: _ }) = longest {
            *family = name::identifier(family);
            (*table, *chain) = (self.table(table), self.chain(chain));
        }
    }

    pub(super) fn drop_rule(&mut self, rule: &mut DropRule) {
        let DropRule {
            family,
            table,
            chain,
            handle: _,
            untracks: _,
            for_host: _,
            to,
            comment,
            packets: _,
        } = rule;
        *family = name::identifier(family);
        (*table, *chain) = (self.table(table), self.chain(chain));
        *to = to.map(|to| self.addresses.ip(to));
        *comment = None;
    }

    /// Keeps `nat` in the pseudonym: checks recognise address translation by the table's name.
    pub(super) fn table(&mut self, table: &str) -> String {
        let stem = if table.to_ascii_lowercase().contains("nat") { "nat-table" } else { "table" };
        self.tables.get(table, stem, false)
    }

    pub(super) fn chain(&mut self, chain: &str) -> String {
        self.chains.get(chain, "chain", false)
    }

    /// Replaces a rule that matches a name prefix by one rule for each matching device of the
    /// namespace, because pseudonyms have other prefixes.
    pub(super) fn clamp(&mut self, clamp: &Clamp, names: &[String]) -> Vec<Clamp> {
        let Clamp { family, table, chain, input, output, mss } = clamp;
        let mut matches = |wanted: &Option<Match>| -> Vec<Option<Match>> {
            match wanted {
                None => vec![None],
                Some(Match::Index(index)) => vec![Some(Match::Index(*index))],
                Some(Match::Name(name)) => vec![Some(Match::Name(self.device_name(name, None)))],
                Some(Match::Prefix(beginning)) => {
                    let meant = names.iter().filter(|name| name.starts_with(beginning.as_str()));
                    let mut all: Vec<_> =
                        meant.map(|name| Some(Match::Name(self.device_name(name, None)))).collect();
                    // A rule that matches no device must not match all of them.
                    if all.is_empty() {
                        all.push(Some(Match::Name("none".to_owned())));
                    }
                    all
                }
            }
        };
        let (inputs, outputs) = (matches(input), matches(output));
        let (table, chain) = (self.table(table), self.chain(chain));
        let family = name::identifier(family);
        let pairs =
            inputs.iter().flat_map(|input| outputs.iter().map(move |output| (input, output)));
        pairs
            .take(MOST_RULES)
            .map(|(input, output)| Clamp {
                family: family.clone(),
                table: table.clone(),
                chain: chain.clone(),
                input: input.clone(),
                output: output.clone(),
                mss: *mss,
            })
            .collect()
    }
}
