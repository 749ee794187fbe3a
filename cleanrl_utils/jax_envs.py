"""Environments in JAX for ppo_jax.py, with the dynamics, rewards and time limits of gymnasium's.

An environment is a class with `obs_dim`, `num_actions` and `max_steps`, after which an episode is truncated, and with
`reset(key)`, which returns a state and an observation, and `step(state, action)`, which returns a state, an
observation, a reward and whether the episode has terminated. Both are pure functions of one environment: ppo_jax.py
maps them over many. CartPole is in ppo_jax.py itself.
"""

import math

import jax
import jax.numpy as jnp


class MountainCar:
    """gymnasium's MountainCar-v0: swing a car that is too weak out of a valley."""

    obs_dim = 2
    num_actions = 3
    max_steps = 200

    def reset(self, key):
        position = jax.random.uniform(key, minval=-0.6, maxval=-0.4)
        state = jnp.stack([position, 0.0])
        return state, state

    def step(self, state, action):
        position, velocity = state
        velocity = velocity + 0.001 * (action - 1) - 0.0025 * jnp.cos(3 * position)
        velocity = jnp.clip(velocity, -0.07, 0.07)
        position = jnp.clip(position + velocity, -1.2, 0.6)
        hits_wall = (position == jnp.float32(-1.2)) & (velocity < 0)
        velocity = jnp.where(hits_wall, 0.0, velocity)
        termination = (position >= 0.5) & (velocity >= 0)
        state = jnp.stack([position, velocity])
        return state, state, -1.0, termination


class Acrobot:
    """gymnasium's Acrobot-v1: swing two links up, with a motor in the joint between them."""

    obs_dim = 6
    num_actions = 3
    max_steps = 500

    def reset(self, key):
        state = jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1)
        return state, self.observe(state)

    def observe(self, state):
        theta1, theta2, theta1_dot, theta2_dot = state
        circles = [jnp.cos(theta1), jnp.sin(theta1), jnp.cos(theta2), jnp.sin(theta2)]
        return jnp.stack(circles + [theta1_dot, theta2_dot])

    def derivative(self, state, torque):
        """How fast the state changes (Sutton and Barto 2018); masses and lengths are 1, centers of mass at 0.5."""
        theta1, theta2, theta1_dot, theta2_dot = state
        sin2, cos2 = jnp.sin(theta2), jnp.cos(theta2)
        d1 = 3.5 + cos2
        d2 = 1.25 + 0.5 * cos2
        phi2 = 4.9 * jnp.sin(theta1 + theta2)
        phi1 = 14.7 * jnp.sin(theta1) + phi2 - sin2 * theta2_dot * (0.5 * theta2_dot + theta1_dot)
        theta2_acc = torque + d2 / d1 * phi1 - 0.5 * theta1_dot**2 * sin2 - phi2
        theta2_acc = theta2_acc / (1.25 - d2**2 / d1)
        theta1_acc = -(d2 * theta2_acc + phi1) / d1
        return jnp.stack([theta1_dot, theta2_dot, theta1_acc, theta2_acc])

    def step(self, state, action):
        torque = action - 1.0
        k1 = self.derivative(state, torque)  # one step of 0.2 seconds by the method of Runge and Kutta
        k2 = self.derivative(state + 0.1 * k1, torque)
        k3 = self.derivative(state + 0.1 * k2, torque)
        k4 = self.derivative(state + 0.2 * k3, torque)
        state = state + 0.2 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        angles = (state[:2] + math.pi) % (2 * math.pi) - math.pi
        max_speeds = jnp.array([4 * math.pi, 9 * math.pi])
        speeds = jnp.clip(state[2:], -max_speeds, max_speeds)
        termination = -jnp.cos(angles[0]) - jnp.cos(angles[0] + angles[1]) > 1
        state = jnp.concatenate([angles, speeds])
        return state, self.observe(state), jnp.where(termination, 0.0, -1.0), termination


ENVS = {"Acrobot-v1": Acrobot, "MountainCar-v0": MountainCar}
