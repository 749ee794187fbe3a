"""The formulas of ppo.py against independent versions: naive NumPy in double precision, closed forms, a peer."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cleanrl.ppo import Agent, Args, compute_gae, make_envs, ppo_loss

floats = st.floats(-10, 10, width=32)


@st.composite
def rollouts(draw):
    shape = draw(st.tuples(st.integers(1, 12), st.integers(1, 3)))
    rewards, values, next_values = (draw(hnp.arrays(np.float32, shape, elements=floats)) for _ in range(3))
    terminations, truncations = (draw(hnp.arrays(np.bool_, shape)) for _ in range(2))
    return rewards, terminations, truncations, values, next_values


def naive_gae(rewards, terminations, truncations, values, next_values, gamma, gae_lambda):
    """The definition, term by term: every advantage sums the discounted TD errors up to the end of its episode."""
    advantages = np.zeros(rewards.shape, dtype=np.float64)
    for idx in range(rewards.shape[1]):
        for start in range(rewards.shape[0]):
            weight = 1.0
            for t in range(start, rewards.shape[0]):
                bootstrap = 0.0 if terminations[t, idx] else gamma * float(next_values[t, idx])
                advantages[start, idx] += weight * (float(rewards[t, idx]) + bootstrap - float(values[t, idx]))
                weight *= gamma * gae_lambda
                if terminations[t, idx] or truncations[t, idx]:
                    break
    return advantages


@settings(deadline=None, max_examples=300)
@given(rollouts(), st.floats(0, 1), st.floats(0, 1))
def test_advantages_equal_the_naive_sum_of_td_errors(rollout, gamma, gae_lambda):
    advantages, returns = compute_gae(*map(torch.as_tensor, rollout), gamma, gae_lambda)
    expected = naive_gae(*rollout, gamma, gae_lambda)
    np.testing.assert_allclose(advantages.numpy(), expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(returns.numpy(), expected + rollout[3], rtol=1e-4, atol=1e-3)


def test_advantages_of_constant_rewards_are_a_geometric_series():
    gamma, steps = 0.9, 50
    zeros = torch.zeros(steps, 1)
    never = torch.zeros(steps, 1, dtype=torch.bool)
    advantages, _ = compute_gae(torch.ones(steps, 1), never, never, zeros, zeros, gamma, 1.0)
    expected = (1 - gamma ** np.arange(steps, 0, -1)) / (1 - gamma)
    np.testing.assert_allclose(advantages[:, 0].numpy(), expected, rtol=1e-5)


def test_true_values_have_no_advantage_if_truncation_is_bootstrapped():
    """Reward 1 for ever is worth 1 / (1 - gamma), also at a time limit; only a termination is a loss."""
    steps, gamma = 20, 0.9
    values = torch.full((steps, 2), 1 / (1 - gamma))
    ends = torch.zeros(steps, 2, dtype=torch.bool)
    ends[4::5] = True
    never = torch.zeros_like(ends)
    advantages, _ = compute_gae(torch.ones(steps, 2), never, ends, values, values, gamma, 0.95)
    np.testing.assert_allclose(advantages.numpy(), 0, atol=1e-5)
    advantages, _ = compute_gae(torch.ones(steps, 2), ends, never, values, values, gamma, 0.95)
    assert (advantages[ends] < -8).all()


def numpy_ppo_loss(newlogprobs, entropy, newvalues, logprobs, advantages, returns, values, args):
    """PPO's loss sample by sample in double precision, from the paper's equations."""
    if args.norm_adv:
        advantages = (advantages - np.mean(advantages)) / (np.std(advantages, ddof=1) + 1e-8)
    policy_terms, value_terms = [], []
    for i in range(len(advantages)):
        ratio = np.exp(newlogprobs[i] - logprobs[i])
        clipped = min(max(ratio, 1 - args.clip_coef), 1 + args.clip_coef)
        policy_terms.append(-min(ratio * advantages[i], clipped * advantages[i]))
        error = (newvalues[i] - returns[i]) ** 2
        if args.clip_vloss:
            moved = min(max(newvalues[i] - values[i], -args.clip_coef), args.clip_coef)
            error = max(error, (values[i] + moved - returns[i]) ** 2)
        value_terms.append(0.5 * error)
    policy_loss, value_loss = np.mean(policy_terms), np.mean(value_terms)
    return policy_loss - args.ent_coef * np.mean(entropy) + args.vf_coef * value_loss, policy_loss, value_loss


@settings(deadline=None, max_examples=200)
@given(st.data(), st.integers(2, 16), st.booleans(), st.booleans())
def test_loss_equals_the_papers_equations(data, size, norm_adv, clip_vloss):
    arrays = [data.draw(hnp.arrays(np.float64, size, elements=st.floats(-3, 3))) for _ in range(7)]
    arrays[0], arrays[3] = arrays[0] / 3, arrays[3] / 3  # log-probabilities: ratios within exp(2)
    args = Args(norm_adv=norm_adv, clip_vloss=clip_vloss)
    loss, stats = ppo_loss(*map(torch.as_tensor, arrays), args)
    expected, policy_loss, value_loss = numpy_ppo_loss(*arrays, args)
    if np.std(arrays[4]) > 1e-4 or not norm_adv:  # a constant divided by its deviation is a matter of rounding
        np.testing.assert_allclose([loss, stats["policy_loss"]], [expected, policy_loss], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(stats["value_loss"], value_loss, rtol=1e-6, atol=1e-12)
    ratio = np.exp(arrays[0] - arrays[3])
    np.testing.assert_allclose(stats["approx_kl"], np.mean(ratio - 1 - np.log(ratio)), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(stats["old_approx_kl"], -np.mean(np.log(ratio)), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(stats["clipfrac"], np.mean(np.abs(ratio - 1) > 0.2), atol=1e-6)


def test_gradient_step_equals_that_of_stable_baselines3_on_the_same_batch():
    sb3 = pytest.importorskip("stable_baselines3")
    torch.manual_seed(1)
    envs = make_envs("CartPole-v1", 1, False, "")
    agent = Agent(envs)
    torch.nn.init.normal_(agent.actor[-1].weight)  # a policy far from uniform: every term of the loss matters
    # SB3 clips values without the maximum and does not halve the squared error: compared without clipping, vf_coef 0.25
    hyper_parameters = {"n_steps": 64, "batch_size": 64, "n_epochs": 1, "ent_coef": 0.01, "vf_coef": 0.25}
    sgd = {"optimizer_class": torch.optim.SGD, "net_arch": {"pi": [64, 64], "vf": [64, 64]}}
    peer = sb3.PPO("MlpPolicy", "CartPole-v1", **hyper_parameters, learning_rate=0.1, policy_kwargs=sgd, device="cpu")
    pairs = [
        (agent.actor[0], peer.policy.mlp_extractor.policy_net[0]),
        (agent.actor[2], peer.policy.mlp_extractor.policy_net[2]),
        (agent.actor[4], peer.policy.action_net),
        (agent.critic[0], peer.policy.mlp_extractor.value_net[0]),
        (agent.critic[2], peer.policy.mlp_extractor.value_net[2]),
        (agent.critic[4], peer.policy.value_net),
    ]
    for ours, theirs in pairs:
        theirs.load_state_dict(ours.state_dict())

    generator = np.random.default_rng(1)
    obs = generator.normal(size=(64, 4)).astype(np.float32)
    actions = generator.integers(0, 2, 64)
    with torch.no_grad():
        logprobs, _, values = agent.evaluate_actions(torch.as_tensor(obs), torch.as_tensor(actions))
    noise = generator.normal(size=64, scale=0.3)  # ratios beyond the clip range
    logprobs += torch.as_tensor(noise, dtype=torch.float32)
    advantages, returns = torch.as_tensor(generator.normal(size=(2, 64)), dtype=torch.float32)

    peer.set_logger(sb3.common.logger.Logger(None, []))
    for i in range(64):
        episode_start = np.zeros(1)
        peer.rollout_buffer.add(
            obs[i : i + 1], actions[i : i + 1], np.zeros(1), episode_start, values[i : i + 1], logprobs[i]
        )
    peer.rollout_buffer.advantages[:], peer.rollout_buffer.returns[:] = advantages[:, None], returns[:, None]
    peer.train()

    optimizer = torch.optim.SGD(agent.parameters(), lr=0.1)
    args = Args(clip_vloss=False, vf_coef=0.5)
    newlogprobs, entropy, newvalues = agent.evaluate_actions(torch.as_tensor(obs), torch.as_tensor(actions))
    loss, stats = ppo_loss(newlogprobs, entropy, newvalues, logprobs, advantages, returns, values, args)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()
    assert stats["clipfrac"] > 0.2
    for ours, theirs in pairs:
        for name, parameter in ours.named_parameters():
            torch.testing.assert_close(parameter, theirs.get_parameter(name), rtol=1e-5, atol=1e-6)


@pytest.fixture
def agent():
    torch.manual_seed(1)
    spaces = {"single_observation_space": gym.spaces.Box(-1, 1, (3,)), "single_action_space": gym.spaces.Discrete(4)}
    return Agent(SimpleNamespace(**spaces))


def test_actions_are_sampled_with_the_probabilities_of_the_policy(agent):
    torch.nn.init.normal_(agent.actor[-1].weight)
    x = torch.randn(3)
    samples = agent.get_action(x.expand(200_000, 3))
    frequencies = torch.bincount(samples, minlength=4) / 200_000
    expected = agent.actor(x).softmax(-1)
    torch.testing.assert_close(frequencies, expected, rtol=0, atol=0.005)
    assert (agent.get_action(x.expand(10, 3), deterministic=True) == expected.argmax()).all()


def test_logprobs_and_entropy_equal_those_of_torch_distributions(agent):
    x = torch.randn(32, 3)
    action = torch.randint(4, (32,))
    logprob, entropy, value = agent.evaluate_actions(x, action)
    reference = torch.distributions.Categorical(logits=agent.actor(x))
    torch.testing.assert_close(logprob, reference.log_prob(action))
    torch.testing.assert_close(entropy, reference.entropy())
    torch.testing.assert_close(value, agent.get_value(x))
    (logprob.sum() + entropy.sum() + value.sum()).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in agent.parameters())


def test_actions_of_a_whole_rollout_are_evaluated_like_those_of_one_batch(agent):
    x = torch.randn(5, 2, 3)  # num_steps, num_envs, observation
    action = torch.randint(4, (5, 2))
    for rollout, batch in zip(agent.evaluate_actions(x, action), agent.evaluate_actions(x[2], action[2])):
        assert rollout.shape == (5, 2)
        torch.testing.assert_close(rollout[2], batch)


def test_networks_are_initialized_orthogonally_with_the_papers_gains(agent):
    for network, gain in ((agent.actor, 0.01), (agent.critic, 1.0)):
        for layer, std in ((network[0], 2**0.5), (network[2], 2**0.5), (network[4], gain)):
            weight = layer.weight.detach()
            gram = weight.T @ weight if weight.shape[0] >= weight.shape[1] else weight @ weight.T
            torch.testing.assert_close(gram, std**2 * torch.eye(len(gram)), atol=1e-5, rtol=1e-4)
            assert (layer.bias == 0).all()
