//! The part of the rules that concerns connections that are there already.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::{Action, Base, Chain, Elements, Expression, Rule, Ruleset, Set, Value};

/// Which chains and sets are in the part, by their places: as they were, as they are.
#[derive(Default)]
struct Kept {
    chains: BTreeMap<usize, usize>,
    sets: BTreeMap<usize, usize>,
}

impl Ruleset {
    /// What packets come to that are not a connection's first: base chains that are not of the
    /// type nat, and what these lead to. Two of them are equal where [`Ruleset::verdict`]
    /// says the same by both of all flows that do not ask chains of nat: numbers of rules, of
    /// generations and of chains that nothing leads to are left out.
    #[must_use]
    pub fn lasting(&self) -> Ruleset {
        self.reached(|base| base.kind != "nat")
    }

    /// What base chains lead to, all or some of them, in an order that does not depend on when
    /// it was made.
    #[must_use]
    pub fn reached(&self, from: impl Fn(&Base) -> bool) -> Ruleset {
        let is_kept = |at: &&usize| {
            let chain = &self.chains[**at];
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
        // In an order that does not depend on the places.
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
            odd: self.odd.clone(),
            bases: Vec::new(),
        };
        part.chains.iter_mut().for_each(|chain| kept.chain(Arc::make_mut(chain)));
        part.sets.iter_mut().for_each(|set| kept.elements(&mut Arc::make_mut(set).elements));
        part.order();
        part
    }
}

/// What a map may lead to.
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
            *handle = 0;
            for expression in expressions {
                match expression {
                    Expression::Verdict(action) => self.action(action),
                    Expression::Lookup { set, .. }
                    | Expression::VerdictMap { set, .. }
                    | Expression::Dynset { set } => {
                        // What is nowhere stays so.
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
