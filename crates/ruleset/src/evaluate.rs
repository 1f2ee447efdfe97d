//! Evaluates a hook's chains for a flow, as `nft_do_chain` does.

use std::collections::{BTreeMap, HashSet};

use crate::expression::REGISTERS;
use crate::flow::{Answer, Connection, Flow, Hook, Place, Step, Verdict};
use crate::model::{Action, Base, Chain, Expression, Rule, Ruleset, Value};
use crate::packet::{Packets, Tracked};
use crate::set::Found;
use crate::value::{Byte, Cause, Comparison, Doubt, Holds, compare, doubt, known, whole, within};
use crate::xt::{ConnmarkMode, Target};

/// `NFT_JUMP_STACK_SIZE`: the kernel rejects deeper rule sets.
const DEPTH: usize = 16;
/// Limit of expressions per evaluation, about 100 ms.
const STEPS: usize = 2_000_000;
/// `NFPROTO_*`.
const INET: u8 = 1;
const IPV4: u8 = 2;
const ARP: u8 = 3;
const NETDEV: u8 = 5;
const BRIDGE: u8 = 7;
const IPV6: u8 = 10;
/// `NF_INET_INGRESS`.
const INET_INGRESS: u32 = 5;

enum RuleResult {
    /// Continue with the next rule.
    Next,
    Act(Action),
    Stop(Verdict),
}

/// Expressions that an evaluation may still process, and the rules compared of each chain, if they
/// are counted.
struct Budget(usize, Option<BTreeMap<usize, usize>>);

/// A chain with the number of its rules that a flow was compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    pub chain: Place,
    /// Rules that the flow was compared with; a chain that is called twice counts twice.
    pub rules: usize,
}

impl Ruleset {
    /// Evaluates the rules for all packets of a flow that pass these hooks in order.
    ///
    /// Stops at the first result other than [`Verdict::Accept`]; later chains may have further
    /// ones.
    pub fn verdict(&self, flow: &Flow, path: &[Step]) -> Answer {
        self.evaluate(flow, path, &mut Budget(STEPS, None))
    }

    /// [`Ruleset::verdict`], with the chain whose rules cost the flow most comparisons, if there is
    /// any.
    pub fn compared(&self, flow: &Flow, path: &[Step]) -> (Answer, Option<Compared>) {
        let mut budget = Budget(STEPS, Some(BTreeMap::new()));
        let answer = self.evaluate(flow, path, &mut budget);
        let longest = budget.1.into_iter().flatten().max_by_key(|(_, rules)| *rules);
        let compared =
            longest.map(|(at, rules)| Compared { chain: Place::of(&self.chains[at], None), rules });
        (answer, compared)
    }

    /// Returns how many rules of a chain repeat an earlier one.
    pub fn repeated(&self, at: &Place) -> usize {
        let Some(chain) = self.chains.iter().find(|chain| Place::of(chain, None) == *at) else {
            return 0;
        };
        let mut seen = HashSet::new();
        let is_new = |rule: &&Rule| seen.insert(format!("{:?}", rule.expressions));
        chain.rules.len() - chain.rules.iter().filter(is_new).count()
    }

    fn evaluate(&self, flow: &Flow, path: &[Step], budget: &mut Budget) -> Answer {
        let mut mark = flow.mark;
        let mut marks = Vec::with_capacity(path.len());
        // Unsupported content may affect any flow.
        if let Some(unsupported) = self.unsupported.first() {
            let verdict = Verdict::NotUnderstood { at: None, what: unsupported.clone() };
            return Answer { verdict, mark, marks };
        }
        for step in path {
            let here: Vec<usize> = self
                .bases
                .iter()
                .copied()
                .filter(|at| {
                    let chain = &self.chains[*at];
                    chain.base.as_ref().is_some_and(|base| is_at(chain, base, flow, step))
                })
                .collect();
            for at in &here {
                let base = self.chains[*at].base.as_ref();
                let priority = base.map_or(0, |base| base.priority);
                let mut packets = Packets { flow, step, priority, mark };
                let verdict = self.base(*at, &mut packets, budget);
                // Only accept continues with the next base chain.
                if verdict != Verdict::Accept {
                    return Answer { verdict, mark, marks };
                }
                // The order of two chains with the same priority is unknown, so the other chain may
                // or may not see a mark that this one sets.
                let is_alone = here.iter().all(|other| {
                    other == at
                        || self.chains[*other].base.as_ref().map(|base| base.priority)
                            != Some(priority)
                });
                if packets.mark != mark && !is_alone {
                    let what = "mark that another chain of the same priority may read".to_owned();
                    let at = Some(Place::of(&self.chains[*at], None));
                    let verdict = Verdict::NotUnderstood { at, what };
                    return Answer { verdict, mark, marks };
                }
                mark = packets.mark;
            }
            marks.push(mark);
        }
        Answer { verdict: Verdict::Accept, mark, marks }
    }

    /// Evaluates a base chain and the chains that it jumps to.
    fn base(&self, base: usize, packets: &mut Packets<'_>, budget: &mut Budget) -> Verdict {
        let mut stack: Vec<(usize, usize)> = Vec::with_capacity(DEPTH);
        let (mut chain, mut next) = (base, 0);
        loop {
            let Some(here) = self.chains.get(chain) else {
                let what = "missing chain".to_owned();
                return Verdict::NotUnderstood { at: None, what };
            };
            if let Some(unsupported) = &here.unsupported {
                let at = Some(Place::of(here, None));
                return Verdict::NotUnderstood { at, what: unsupported.clone() };
            }
            let Some(rule) = here.rules.get(next) else {
                match stack.pop() {
                    Some(back) => (chain, next) = back,
                    // The base chain ends here, so its policy decides.
                    None => return self.policy(base),
                }
                continue;
            };
            next += 1;
            if let Some(compared) = &mut budget.1 {
                *compared.entry(chain).or_default() += 1;
            }
            match self.rule(here, rule, packets, budget) {
                RuleResult::Next | RuleResult::Act(Action::Continue | Action::Break) => {}
                RuleResult::Stop(verdict) => return verdict,
                RuleResult::Act(Action::Accept) => return Verdict::Accept,
                RuleResult::Act(Action::Drop) => {
                    return Verdict::Drop { at: Place::of(here, Some(rule)) };
                }
                RuleResult::Act(Action::Queue) => {
                    return depends(here, rule, Doubt::new(Cause::Effect, "queue"));
                }
                RuleResult::Act(Action::Return) => match stack.pop() {
                    Some(back) => (chain, next) = back,
                    // A return from the base chain: its policy decides.
                    None => return self.policy(base),
                },
                RuleResult::Act(Action::Goto(to)) => (chain, next) = (to, 0),
                RuleResult::Act(Action::Jump(to)) => {
                    if stack.len() >= DEPTH {
                        return not_understood(here, rule, "more jumps than the kernel allows");
                    }
                    stack.push((chain, next));
                    (chain, next) = (to, 0);
                }
            }
        }
    }

    fn policy(&self, base: usize) -> Verdict {
        let chain = &self.chains[base];
        match &chain.base {
            Some(base) if base.drops => Verdict::Drop { at: Place::of(chain, None) },
            _ => Verdict::Accept,
        }
    }

    fn rule(
        &self,
        chain: &Chain,
        rule: &Rule,
        packets: &mut Packets<'_>,
        budget: &mut Budget,
    ) -> RuleResult {
        // The kernel rejects rules that read an unset register.
        let unset = Byte::unknown(Doubt::new(Cause::Unknown, "unset register"));
        let mut registers = [unset; REGISTERS];
        // Reason why it is uncertain whether the rule matches so far.
        let mut maybe: Option<Doubt> = None;
        let stop = |doubt| RuleResult::Stop(depends(chain, rule, doubt));
        for expression in &rule.expressions {
            // Sets of jumps may multiply: the budget bounds the time for one flow.
            match budget.0.checked_sub(1) {
                Some(rest) => budget.0 = rest,
                None => {
                    return RuleResult::Stop(not_understood(chain, rule, "too many expressions"));
                }
            }
            let holds = match expression {
                Expression::Nothing => Holds::Yes,
                Expression::UnsupportedContent(why) => {
                    return RuleResult::Stop(not_understood(chain, rule, why));
                }
                Expression::Meta { key, to } => {
                    store(&mut registers, *to, &packets.meta(*key));
                    Holds::Yes
                }
                Expression::Payload { base, offset, length, to } => {
                    let (bytes, is_there) = packets.payload(*base, *offset, *length);
                    store(&mut registers, *to, &bytes);
                    // The rule does not match packets that end earlier.
                    let short = Doubt::new(Cause::Packet, "payload");
                    if is_there { Holds::Yes } else { Holds::Maybe(short) }
                }
                Expression::Ct { key, direction, to } => match packets.ct(*key, *direction) {
                    Some(bytes) => {
                        store(&mut registers, *to, &bytes);
                        Holds::Yes
                    }
                    None => Holds::No,
                },
                Expression::Fib { result, flags, to } => {
                    store(&mut registers, *to, &packets.fib(*result, *flags));
                    Holds::Yes
                }
                Expression::Immediate { to, value } => {
                    store(&mut registers, *to, &known(value));
                    Holds::Yes
                }
                Expression::Compare { from, how, with } => {
                    compare(&registers[*from..][..with.len()], *how, with)
                }
                Expression::Range { from, inverted, least, most } => {
                    within(&registers[*from..][..least.len()], least, most).xor(*inverted)
                }
                Expression::MaskXor { from, to, mask, xor } => {
                    let bytes: Vec<Byte> = (registers[*from..].iter().zip(mask).zip(xor))
                        .map(|((byte, mask), xor)| byte.masked(*mask, *xor))
                        .collect();
                    store(&mut registers, *to, &bytes);
                    Holds::Yes
                }
                Expression::ByteOrder { from, to, length, size } => {
                    let mut bytes = registers[*from..][..*length].to_vec();
                    if cfg!(target_endian = "little") {
                        bytes.chunks_mut(*size).for_each(<[Byte]>::reverse);
                    }
                    store(&mut registers, *to, &bytes);
                    Holds::Yes
                }
                Expression::Lookup { set, from, to, inverted } => {
                    let set = &self.sets[*set];
                    if let Some(unsupported) = &set.unsupported {
                        let why = format!("set {}: {unsupported}", set.name);
                        return RuleResult::Stop(not_understood(chain, rule, &why));
                    }
                    let Some(key) = registers.get(*from..*from + set.key_length) else {
                        return RuleResult::Stop(not_understood(chain, rule, "key too long"));
                    };
                    match (set.find(key), to) {
                        // Stateful elements need every packet, matching or not.
                        (Found::Maybe(doubt), _) if doubt.cause == Cause::Counting => {
                            return stop(doubt);
                        }
                        (Found::Maybe(doubt), to) => {
                            if let Some(to) = to {
                                registers[*to..].fill(Byte::unknown(doubt));
                            }
                            Holds::Maybe(doubt)
                        }
                        (Found::Yes(Value::Data(value)), Some(to))
                            if value.len() <= REGISTERS - to =>
                        {
                            store(&mut registers, *to, &known(value));
                            Holds::Yes
                        }
                        (Found::Yes(_), Some(_)) => {
                            return RuleResult::Stop(not_understood(
                                chain,
                                rule,
                                "map without values",
                            ));
                        }
                        (Found::No, Some(_)) => Holds::No,
                        (Found::Yes(_), None) => Holds::of(!inverted),
                        (Found::No, None) => Holds::of(*inverted),
                    }
                }
                Expression::VerdictMap { set, from } => {
                    let set = &self.sets[*set];
                    if let Some(unsupported) = &set.unsupported {
                        let why = format!("map {}: {unsupported}", set.name);
                        return RuleResult::Stop(not_understood(chain, rule, &why));
                    }
                    let Some(key) = registers.get(*from..*from + set.key_length) else {
                        return RuleResult::Stop(not_understood(chain, rule, "key too long"));
                    };
                    match (set.find(key), maybe) {
                        (Found::No, _) => Holds::No,
                        // The element decides, and whether it matches is unknown.
                        (_, Some(doubt)) | (Found::Maybe(doubt), None) => return stop(doubt),
                        (Found::Yes(Value::Verdict(Action::Continue)), None) => Holds::Yes,
                        (Found::Yes(Value::Verdict(action)), None) => {
                            return RuleResult::Act(*action);
                        }
                        (Found::Yes(_), None) => {
                            return RuleResult::Stop(not_understood(
                                chain,
                                rule,
                                "map without verdicts",
                            ));
                        }
                    }
                }
                Expression::Match(matches) => packets.matches(matches),
                Expression::Dynset { .. } => {
                    return stop(maybe.unwrap_or(Doubt::new(Cause::Unannounced, "dynset")));
                }
                Expression::Slow(doubt) => {
                    // The expression may write any register.
                    registers.fill(Byte::unknown(*doubt));
                    Holds::Maybe(*doubt)
                }
                // The expressions below have side effects: an uncertain match is a result.
                _ if maybe.is_some() => return maybe.map_or(RuleResult::Next, stop),
                Expression::Verdict(Action::Continue) => Holds::Yes,
                Expression::Verdict(action) => return RuleResult::Act(*action),
                Expression::Reject | Expression::Target(Target::Reject) => {
                    return RuleResult::Act(Action::Drop);
                }
                // The target has an effect on each packet, which the fast path would leave out.
                Expression::Target(Target::Slow(doubt)) => return stop(*doubt),
                Expression::Target(Target::Mark { mark, mask }) => {
                    packets.mark = packets.mark & !mask ^ mark;
                    Holds::Yes
                }
                Expression::Target(Target::Connmark {
                    mode,
                    mark,
                    connection_mask,
                    packet_mask,
                }) => match connmark(packets, *mode, *mark, *connection_mask, *packet_mask) {
                    Ok(mark) => {
                        packets.mark = mark;
                        Holds::Yes
                    }
                    Err(doubt) => return stop(doubt),
                },
                // NFT_META_MARK.
                Expression::MetaSet { key: 3, from } => {
                    let bytes = &registers[*from..][..4];
                    let Some(value) = whole(bytes).and_then(|value| value.try_into().ok()) else {
                        return stop(doubt(bytes));
                    };
                    packets.mark = u32::from_ne_bytes(value);
                    Holds::Yes
                }
                Expression::MetaSet { .. } => {
                    return stop(Doubt::new(Cause::Effect, "meta set"));
                }
                Expression::CtSet { key, from } => {
                    // NFT_CT_MARK. Earlier packets have set the entry's mark already, so an equal
                    // mark changes nothing.
                    let mark = match packets.tracked() {
                        Tracked::Entry(Connection { mark: Some(mark), .. }) if *key == 3 => mark,
                        // Without an entry there is no mark to set. A zone is set in a template, so
                        // it is not ignored.
                        Tracked::Nothing if *key == 3 => continue,
                        _ => return stop(Doubt::new(Cause::Effect, "ct set")),
                    };
                    let bytes = &registers[*from..][..4];
                    let to = compare(bytes, Comparison::Equal, &mark.to_ne_bytes());
                    if to != Holds::Yes {
                        return stop(Doubt::new(Cause::Effect, "ct mark set"));
                    }
                    Holds::Yes
                }
            };
            match holds {
                // The rest of the rule is not evaluated, as in the kernel.
                Holds::No => return RuleResult::Next,
                Holds::Yes => {}
                // An uncertain read may still turn out to be irrelevant. An expression with state
                // or a side effect has already acted on packets that came this far.
                Holds::Maybe(doubt) => match doubt.cause {
                    Cause::Counting | Cause::Effect => return stop(maybe.unwrap_or(doubt)),
                    // Evaluating it has an effect in itself, so the order matters.
                    _ if is_stateful(expression) => return stop(maybe.unwrap_or(doubt)),
                    _ => maybe = maybe.or(Some(doubt)),
                },
            }
        }
        RuleResult::Next
    }
}

/// Sets registers. They are set in words; the rest of the last word is zero.
fn store(registers: &mut [Byte; REGISTERS], to: usize, bytes: &[Byte]) {
    for (at, register) in registers[to..].iter_mut().enumerate() {
        match bytes.get(at) {
            Some(byte) => *register = *byte,
            None if at < bytes.len().next_multiple_of(4) => *register = Byte::known(0),
            None => break,
        }
    }
}

/// Whether an expression with an uncertain result has state of its own.
fn is_stateful(expression: &Expression) -> bool {
    let doubt = match expression {
        Expression::Slow(doubt) => doubt,
        Expression::Match(crate::xt::Match::Slow(doubt)) => doubt,
        _ => return false,
    };
    // numgen inc, statistic nth, ipset with counters or timeouts, dynset.
    !matches!(doubt.cause, Cause::Packet)
}

/// Returns the packets' mark after `CONNMARK` (`xt_connmark.c`).
fn connmark(
    packets: &Packets<'_>,
    mode: ConnmarkMode,
    mark: u32,
    connection_mask: u32,
    packet_mask: u32,
) -> Result<u32, Doubt> {
    let entry = match packets.tracked() {
        Tracked::Entry(entry) => entry,
        // Without an entry the mark stays as it is.
        Tracked::Nothing => return Ok(packets.mark),
        Tracked::Unclear => return Err(Doubt::new(Cause::Unknown, "CONNMARK at this hook")),
    };
    let Some(known) = entry.mark else { return Err(Doubt::new(Cause::Unknown, "ct mark")) };
    let of_connection = match mode {
        ConnmarkMode::Set => known & !connection_mask ^ mark,
        ConnmarkMode::Save => known & !connection_mask ^ packets.mark & packet_mask,
        ConnmarkMode::Restore => {
            return Ok(packets.mark & !packet_mask ^ known & connection_mask);
        }
    };
    // Earlier packets have set the entry's mark already, so an equal mark changes nothing.
    if of_connection != known {
        return Err(Doubt::new(Cause::Effect, "CONNMARK"));
    }
    Ok(packets.mark)
}

/// Whether packets pass a base chain at a step.
fn is_at(chain: &Chain, base: &Base, flow: &Flow, step: &Step) -> bool {
    // NAT chains see the first packet of a connection; conntrack translates the others.
    if chain.is_dormant || (base.kind == "nat" && !flow.asks_nat) {
        return false;
    }
    let own = if flow.tuple.source.0.is_ipv4() { IPV4 } else { IPV6 };
    let inet = |hook| (chain.family == own || chain.family == INET) && base.hook == hook;
    let bridge = |hook| chain.family == BRIDGE && base.hook == hook;
    let device = |of: &Option<crate::flow::Interface>| {
        of.as_ref().is_some_and(|of| {
            base.devices.iter().any(|device| match device.strip_suffix('*') {
                Some(begin) => of.name.starts_with(begin),
                None => *device == of.name,
            })
        })
    };
    match step.hook {
        Hook::Prerouting => inet(0),
        Hook::Input => inet(1),
        Hook::Forward => inet(2),
        Hook::Output => inet(3),
        Hook::Postrouting => inet(4),
        Hook::ArpInput => chain.family == ARP && base.hook == 0,
        Hook::ArpOutput => chain.family == ARP && base.hook == 1,
        Hook::BridgePrerouting => bridge(0),
        Hook::BridgeInput => bridge(1),
        Hook::BridgeForward => bridge(2),
        Hook::BridgeOutput => bridge(3),
        Hook::BridgePostrouting => bridge(4),
        Hook::Ingress => {
            device(&step.input)
                && (chain.family == NETDEV && base.hook == 0
                    || chain.family == INET && base.hook == INET_INGRESS)
        }
        Hook::Egress => device(&step.output) && chain.family == NETDEV && base.hook == 1,
    }
}

fn not_understood(chain: &Chain, rule: &Rule, what: &str) -> Verdict {
    Verdict::NotUnderstood { at: Some(Place::of(chain, Some(rule))), what: what.to_owned() }
}

fn depends(chain: &Chain, rule: &Rule, doubt: Doubt) -> Verdict {
    match doubt.cause {
        Cause::Unknown => not_understood(chain, rule, doubt.what),
        cause => Verdict::Depends {
            at: Place::of(chain, Some(rule)),
            cause,
            what: doubt.what.to_owned(),
        },
    }
}
