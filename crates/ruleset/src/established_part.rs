//! The part of the rules that affects existing connections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::{Action, Base, Chain, Elements, Expression, Rule, Ruleset, Set, Value};
use crate::xt::Match;

/// New indices of the chains and sets that are kept, by old index.
#[derive(Default)]
struct Kept {
    chains: BTreeMap<usize, usize>,
    sets: BTreeMap<usize, usize>,
}

impl Ruleset {
    /// Returns the rules that affect packets after a connection's first: all base chains except NAT
    /// chains, and the chains and sets that they reach. Two results are equal only if
    /// [`Ruleset::verdict`] is the same for every flow that does not evaluate NAT chains. Handles,
    /// generations and unreachable chains are left out.
    #[must_use]
    pub fn established_part(&self) -> Ruleset {
        self.reached(|base| base.kind != "nat")
    }

    /// Whether a rule matches the type of an address in the routing tables.
    #[must_use]
    pub fn asks_address_types(&self) -> bool {
        let asks = |expression: &Expression| {
            matches!(
                expression,
                Expression::Fib { .. } | Expression::Match(Match::AddressType { .. })
            )
        };
        let mut rules = self.chains.iter().flat_map(|chain| &chain.rules);
        rules.any(|rule| rule.expressions.iter().any(asks))
    }

    /// Returns the chains and sets reachable from selected base chains, in a canonical order.
    #[must_use]
    pub fn reached(&self, from: impl Fn(&Base) -> bool) -> Ruleset {
        let is_kept = |at: &&usize| {
            let chain = &self.chains[**at];
            // Dormant chains are not registered.
            !chain.is_dormant && chain.base.as_ref().is_some_and(&from)
        };
        let mut to_follow: Vec<usize> = self.bases.iter().filter(is_kept).copied().collect();
        let mut reached: BTreeSet<usize> = to_follow.iter().copied().collect();
        let mut sets: BTreeSet<usize> = BTreeSet::new();
        while let Some(chain) = to_follow.pop() {
            let Some(chain) = self.chains.get(chain) else { continue };
            let mut reach = |action: Action| {
                if let Action::Jump(to) | Action::Goto(to) = action
                    && reached.insert(to)
                {
                    to_follow.push(to);
                }
            };
            for expression in chain.rules.iter().flat_map(|rule| &rule.expressions) {
                match expression {
                    Expression::Verdict(action) => reach(*action),
                    Expression::Lookup { set, .. }
                    | Expression::VerdictMap { set, .. }
                    | Expression::Dynset { set }
                        if sets.insert(*set) =>
                    {
                        self.sets
                            .get(*set)
                            .into_iter()
                            .flat_map(|set| actions(set))
                            .for_each(&mut reach);
                    }
                    _ => {}
                }
            }
        }
        // Sort by name, because indices depend on the history.
        let mut reached: Vec<usize> = reached.into_iter().collect();
        let mut sets: Vec<usize> = sets.into_iter().collect();
        let name = |at: &usize| {
            let chain = self.chains.get(*at)?;
            Some((chain.family, chain.table.clone(), chain.name.clone()))
        };
        reached.sort_by_key(name);
        sets.sort_by_key(|at| {
            let set = self.sets.get(*at)?;
            Some((set.family, set.table.clone(), set.name.clone()))
        });
        let kept = Kept {
            chains: reached.iter().enumerate().map(|(to, from)| (*from, to)).collect(),
            sets: sets.iter().enumerate().map(|(to, from)| (*from, to)).collect(),
        };
        let mut part = Ruleset {
            generation: 0,
            chains: reached.iter().filter_map(|at| self.chains.get(*at)).cloned().collect(),
            sets: sets.iter().filter_map(|at| self.sets.get(*at)).cloned().collect(),
            unsupported: self.unsupported.clone(),
            bases: Vec::new(),
        };
        part.chains.iter_mut().for_each(|chain| kept.chain(Arc::make_mut(chain)));
        part.sets.iter_mut().for_each(|set| kept.elements(&mut Arc::make_mut(set).elements));
        part.order();
        part
    }
}

/// Returns the verdicts that a map may return.
fn actions(set: &Set) -> impl Iterator<Item = Action> {
    let Elements { exact, boxes, edges, otherwise } = &set.elements;
    let values = (exact.values())
        .chain(boxes.iter().map(|(.., value)| value))
        .chain(edges.iter().filter_map(|(_, value)| value.as_ref()))
        .chain(otherwise);
    values.filter_map(|value| match value {
        Value::Verdict(action) => Some(*action),
        _ => None,
    })
}

impl Kept {
    fn chain(&self, chain: &mut Chain) {
        for Rule { handle, expressions } in &mut chain.rules {
            // Handles do not affect the verdict.
            *handle = 0;
            for expression in expressions {
                match expression {
                    Expression::Verdict(action) => self.action(action),
                    Expression::Lookup { set, .. }
                    | Expression::VerdictMap { set, .. }
                    | Expression::Dynset { set } => {
                        // A dangling index stays dangling.
                        *set = self.sets.get(set).copied().unwrap_or(usize::MAX);
                    }
                    _ => {}
                }
            }
        }
    }

    fn elements(&self, elements: &mut Elements) {
        let Elements { exact, boxes, edges, otherwise } = elements;
        let values = (exact.values_mut())
            .chain(boxes.iter_mut().map(|(.., value)| value))
            .chain(edges.iter_mut().filter_map(|(_, value)| value.as_mut()))
            .chain(otherwise);
        for value in values {
            if let Value::Verdict(action) = value {
                self.action(action);
            }
        }
    }

    fn action(&self, action: &mut Action) {
        if let Action::Jump(to) | Action::Goto(to) = action {
            *to = self.chains.get(to).copied().unwrap_or(usize::MAX);
        }
    }
}
