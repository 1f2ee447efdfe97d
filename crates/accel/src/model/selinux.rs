//! SELinux: the state by which it tells whether to check packets.
//!
//! SELinux registers functions at netfilter's hooks (`security/selinux/hooks.c`, Linux 6.6 to
//! 6.18). They accept a packet at once, as long as
//!
//! - the policy has the capability `network_peer_controls` and not `always_check_network`,
//! - no rule labels packets (`SECMARK` of iptables, `secmark` objects of nftables),
//! - NetLabel has no domain of interpretation and no static label,
//! - no IPsec policy or state has a label.
//!
//! All four hold for the whole machine: a rule in any namespace makes SELinux check the packets of
//! every namespace. Without `network_peer_controls`, it checks packets that still belong to a
//! tenant's socket (`selinux_ip_postroute_compat`). The checks at sockets
//! (`selinux_socket_sock_rcv_skb`) are made on both paths.

/// State of SELinux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Labelling {
    /// Policy capability `network_peer_controls`. Off before a policy is loaded.
    pub peer_controls: bool,
    /// Policy capability `always_check_network`.
    pub always_checked: bool,
    /// Rules and objects that label packets, `selinux_secmark_refcount`.
    pub secmark: u32,
    /// Domains of interpretation and static labels of NetLabel, `netlabel_mgmt_protocount`.
    pub netlabel: u32,
    /// Labelled IPsec policies and states, `selinux_xfrm_refcount`.
    pub ipsec: u32,
}

impl Labelling {
    /// Returns why SELinux may check packets. `None`: it accepts all of them.
    pub fn checks(&self) -> Option<SelinuxReason> {
        Some(match self {
            Labelling { peer_controls: false, .. } => SelinuxReason::NoPeerControls,
            Labelling { always_checked: true, .. } => SelinuxReason::AlwaysChecked,
            Labelling { netlabel: 1.., .. } => SelinuxReason::Netlabel(self.netlabel),
            Labelling { secmark: 1.., .. } => SelinuxReason::Secmark(self.secmark),
            Labelling { ipsec: 1.., .. } => SelinuxReason::Ipsec(self.ipsec),
            Labelling { netlabel: 0, secmark: 0, ipsec: 0, .. } => return None,
        })
    }
}

/// Why SELinux may check, label or drop packets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelinuxReason {
    /// No policy is loaded, or one without the capability.
    #[error("no policy with the capability network_peer_controls is loaded")]
    NoPeerControls,
    /// The policy has the capability.
    #[error("the policy has the capability always_check_network")]
    AlwaysChecked,
    /// Label definitions of NetLabel.
    #[error("NetLabel has {0} label definitions")]
    Netlabel(u32),
    /// Rules and objects that label packets.
    #[error("{0} rules or objects label packets (SECMARK)")]
    Secmark(u32),
    /// Labelled IPsec policies and states.
    #[error("{0} IPsec policies or states have a label")]
    Ipsec(u32),
    /// The state cannot be read.
    #[error("{0}")]
    Unknown(String),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SILENT: Labelling =
        Labelling { peer_controls: true, always_checked: false, secmark: 0, netlabel: 0, ipsec: 0 };

    #[test]
    fn labelled_networking_of_each_kind_is_a_reason() {
        assert_eq!(SILENT.checks(), None);
        for (state, text) in [
            (
                Labelling { peer_controls: false, ..SILENT },
                "no policy with the capability network_peer_controls is loaded",
            ),
            (
                Labelling { always_checked: true, ..SILENT },
                "the policy has the capability always_check_network",
            ),
            (Labelling { netlabel: 1, ..SILENT }, "NetLabel has 1 label definitions"),
            (Labelling { secmark: 2, ..SILENT }, "2 rules or objects label packets (SECMARK)"),
            (Labelling { ipsec: 3, ..SILENT }, "3 IPsec policies or states have a label"),
        ] {
            assert_eq!(state.checks().unwrap().to_string(), text);
        }
    }

    proptest! {
        /// As `selinux_ip_forward`, `selinux_ip_output` and `selinux_ip_postroute` begin.
        #[test]
        fn nothing_else_than_silence_is_accepted(
            (peer_controls, always_checked) in any::<(bool, bool)>(),
            counts in prop::array::uniform3(prop_oneof![Just(0_u32), any::<u32>()]),
        ) {
            let [secmark, netlabel, ipsec] = counts;
            let state = Labelling { peer_controls, always_checked, secmark, netlabel, ipsec };
            let secmark_enabled = always_checked || secmark != 0;
            let peer_labels_enabled = always_checked || netlabel != 0 || ipsec != 0;
            let is_silent = peer_controls && !secmark_enabled && !peer_labels_enabled;
            prop_assert_eq!(state.checks().is_none(), is_silent);
        }
    }
}
